"""Group-relative advantages, worked out by hand."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pytest

from schemas.config import Config
from schemas.rows import Episode
from storage.sql.views import connect
from storage.store import Committed, Store
from tasks.algorithms import ALGORITHMS
from tasks.algorithms.rft import RFT
from tasks.improvement.group_advantages import STD_FLOOR, group_relative
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import run_stages
from tests.support.committed import commit_rows
from tests.support.rows import episode, transitions

RATED = replace(RFT, name="rated", stages=("rollout", "advantages"), advantages=group_relative)


@pytest.fixture
def rate(
    make_config: Callable[..., Config], store: Store, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Committed]:
    """Stage advantages over given episodes, each of two turns."""
    monkeypatch.setitem(ALGORITHMS, RATED.name, RATED)

    def run(episodes: Sequence[Episode], **settings: bool) -> pl.DataFrame:
        steps = [step for one in episodes for step in transitions(one)]
        commit_rows(store, "rollout", 0, {"episodes": episodes, "transitions": steps})
        config = make_config(algorithm="rated", policy_gradient=settings)
        made = asyncio.run(run_stages(store, config, ["advantages"]))
        assert decide(store, config, "advantages", 0).reuse
        return made

    return run


def of_group(group: int, returns: Sequence[float]) -> list[Episode]:
    """Episodes of one group with these returns."""
    numbers = range(10 * group, 10 * group + len(returns))
    return [
        episode(number, reward=reward, group_id=f"trial/00000/train/g/{group:05d}")
        for number, reward in zip(numbers, returns, strict=True)
    ]


def test_turns_of_an_episode_share_its_advantage_and_a_group_without_spread_is_counted(
    rate: Callable[..., Committed], store: Store
) -> None:
    """Returns 0, 1, 1, 2: mean 1, sample variance (1 + 0 + 0 + 1) / 3."""
    made = rate([*of_group(0, [0, 1, 1, 2]), *of_group(1, [1, 1, 1])])
    rows = made.scan("advantages").collect()
    std = math.sqrt(2 / 3)
    expected = [-1 / (std + STD_FLOOR), 0.0, 0.0, 1 / (std + STD_FLOOR)]
    first = rows.filter(pl.col("group_id").str.ends_with("00000"))
    assert first["advantage"].to_list() == pytest.approx([a for a in expected for _ in range(2)])
    assert first["baseline"].unique().to_list() == [1.0] and set(first["status"]) == {"ok"}
    assert first["group_std"].unique().to_list() == pytest.approx([std]) and set(first["group_size"]) == {4}
    flat = rows.filter(pl.col("group_id").str.ends_with("00001"))
    assert flat["advantage"].to_list() == [0.0] * 6 and set(flat["status"]) == {"no_spread"}
    assert set(flat["error"]) == {"all 3 episodes of the group have return 1"}
    assert (made.manifest.metrics["groups"], made.manifest.metrics["groups_without_spread"]) == (2, 1)
    joined = "select count(*) from advantages join transitions using (transition_id, episode_id)"
    assert connect(store).sql(joined).fetchall() == [(rows.height,)]


def test_the_standard_deviation_may_be_left_out(rate: Callable[..., Committed]) -> None:
    rows = rate(of_group(0, [0, 0, 0, 1]), divide_by_std=False).scan("advantages").collect()
    assert rows["advantage"].to_list() == [-0.25] * 6 + [0.75] * 2
    assert set(rows["scale"]) == {1.0}


def test_a_failed_episode_counts_in_no_group(rate: Callable[..., Committed]) -> None:
    played = of_group(0, [0, 1, 5])
    failed = played[2].model_copy(update={"status": "engine_error", "error": "refused"})
    rows = rate([*played[:2], failed], divide_by_std=False).scan("advantages").collect()
    assert rows["advantage"].to_list() == [-0.5, -0.5, 0.5, 0.5, None, None]
    assert rows["group_size"].to_list() == [2] * 4 + [None] * 2
    assert rows["error"].to_list()[-1] == "engine_error: refused"


def test_an_episode_alone_has_no_spread(rate: Callable[..., Committed]) -> None:
    rows = rate(of_group(0, [1])).scan("advantages").collect()
    assert set(rows["status"]) == {"no_spread"} and set(rows["group_std"]) == {None}
