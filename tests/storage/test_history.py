"""States rebuilt from deltas."""

import polars as pl
import pytest

from storage.history import State, Turn, rebuild_states


def steps(episode: str, count: int) -> list[dict[str, object]]:
    return [
        {
            "episode_id": episode, "step": n, "transition_id": f"{episode}/{n}", "observation": f"{episode}o{n}",
            "raw_action": f"{episode}a{n}",
        }
        for n in range(count)
    ]  # fmt: skip


def test_the_state_holds_everything_seen_before_acting() -> None:
    table = pl.LazyFrame([*steps("e", 3), *steps("f", 2)]).reverse()
    states = rebuild_states(table, ["e/2", "f/0"])
    assert states == {
        "e/2": State((Turn("eo0", "ea0"), Turn("eo1", "ea1")), "eo2"),
        "f/0": State((), "fo0"),
    }


def test_the_next_state_is_the_state_after_the_action() -> None:
    table = pl.LazyFrame(steps("e", 3))
    states = rebuild_states(table, ["e/0", "e/1"])
    assert states["e/0"].after("ea0", "eo1") == states["e/1"]


def test_a_missing_step_is_an_error_that_names_it() -> None:
    table = pl.LazyFrame([row for row in steps("e", 4) if row["step"] != 1])
    with pytest.raises(KeyError, match="step 1 is missing"):
        rebuild_states(table, ["e/3"])


def test_an_unknown_transition_is_an_error() -> None:
    with pytest.raises(KeyError, match="e/9"):
        rebuild_states(pl.LazyFrame(steps("e", 2)), ["e/9"])
