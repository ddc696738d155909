"""Which proposals are distilled: the choice among equals, the cap on rows, and what can't be compared."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import ConfigError
from schemas.rows import Critique, Refinement
from tasks.improvement.distillation import cap_rows, final_reason, most_probable
from tasks.measures.entropy import action_entropy
from tasks.pipeline.checks import check_config
from tasks.pipeline.plan import plan
from tasks.runtime.stage import StageFailed

MakeConfig = Callable[..., Config]
COMMON = {"run": "trial", "iteration": 0, "sample_id": "s", "transition_id": "t", "round": 1}


def judged(share: float | None) -> Critique:
    return Critique(
        **COMMON, critique_id="s/c/0", action_source="fresh", action_text="", thought="", action="", critique="",
        optimal=share is not None and share > 0.5, yes_probability=share,
    )  # fmt: skip


def proposed(number: int, action: str = "up", *, distil: bool = True, changed: bool = True) -> Refinement:
    return Refinement(
        **COMMON, refinement_id=f"s{number}/r/1", critique_id="c", kind="refined", action_text=action,
        thought_before="", thought="", action=action, valid=True, changed=changed, distil=distil,
        distil_reason="refined" if distil else "failed",
    )  # fmt: skip


def test_among_equally_probable_actions_each_is_drawn_and_a_seed_draws_the_same() -> None:
    critiques = [judged(share) for share in (0.2, 0.4, 0.1, 0.4)]
    drawn = [most_probable(critiques, seed) for seed in range(30)]
    assert set(drawn) == {1, 3} and drawn == [most_probable(critiques, seed) for seed in range(30)]


def test_a_cap_draws_among_the_rows_of_an_action_in_a_state() -> None:
    rows = [proposed(n) for n in range(6)] + [proposed(6, "down"), proposed(7, distil=False)]
    state = {row.refinement_id: "near" if n < 4 else "far" for n, row in enumerate(rows)}

    def distilled(cap: int | None, seed: int) -> list[str]:
        made = cap_rows(rows, lambda row: state[row.refinement_id], cap, seed)
        assert [row.refinement_id for row in made] == [row.refinement_id for row in rows]
        assert all(row.distil_reason == "surplus" for row in made[:7] if not row.distil)
        assert made[7] == rows[7]
        return [row.refinement_id.removesuffix("/r/1") for row in made if row.distil]

    assert distilled(None, 0) == [f"s{n}" for n in range(7)]
    one = [distilled(1, seed) for seed in range(30)]
    assert all(len(kept) == 3 and "s6" in kept for kept in one)
    assert {kept[0] for kept in one} == {"s0", "s1", "s2", "s3"}, "not the first of equals"
    assert len(distilled(2, 0)) == 5 and distilled(2, 0) == distilled(2, 0)


def test_a_gain_needs_probabilities() -> None:
    with pytest.raises(StageFailed, match=r"improvement\.require_gain: .* s/c/0 .* engine that scores"):
        final_reason(proposed(0), judged(None), judged(0.4), compared=False, require_gain=True)


@pytest.mark.parametrize(
    ("changed", "first", "second", "reason"),
    [
        (True, 0.3, 0.4, "gain"),
        (True, 0.4, 0.4, "no_gain"),
        (False, 0.3, 0.4, "unchanged"),
        (False, 0.3, 0.6, "gain"),
        (False, 0.3, 0.2, "no_gain"),
    ],
)
@pytest.mark.parametrize("compared", [False, True])
def test_an_unchanged_action_gains_only_if_it_is_called_optimal_now(
    changed: bool, first: float, second: float, reason: str, compared: bool
) -> None:
    row = proposed(0, changed=changed)
    assert final_reason(row, judged(first), judged(second), compared=compared, require_gain=True) == reason


@pytest.mark.parametrize(
    ("rules", "improvement", "message"),
    [
        ("unscored", {"require_gain": True, "verdict": "auto"}, r"require_gain: .*'rules' .* does not score"),
        ("unscored", {"verdict": "scored"}, r"verdict: .*'rules' .* does not score"),
        (
            "number_game",
            {"require_gain": True, "verdict": "written"},
            r"require_gain: .* improvement\.verdict",
        ),
    ],
)
@pytest.mark.parametrize("algorithm", ["nlac", "self_distillation", "refiner_alone"])
def test_what_needs_probabilities_is_refused_without_them(
    make_config: MakeConfig, tmp_path: Path, algorithm: str, rules: str, improvement: dict, message: str
) -> None:
    config = make_config(f"tests.support.rules:{rules}", algorithm=algorithm, improvement=improvement)
    with pytest.raises(ConfigError, match=r"improvement\." + message):
        check_config(config, tmp_path / "data")


def test_scoring_and_judging_again_are_in_the_bound(make_config: MakeConfig) -> None:
    def requests(**improvement: object) -> dict[str, int]:
        section = {"states": 2, "futures": 1, **improvement}
        rows = plan(make_config(improvement=section, correction={"enabled": False}))
        return {row.stage: row.bound.requests for row in rows}

    written, scored = requests(), requests(verdict="auto")
    # an action, a future and a verdict for each of two states; two texts scored for it
    assert (written["critique"], scored["critique"]) == (2 * 3, 2 * 5)
    assert (written["refinement"], scored["refinement"]) == (2, 2)
    assert requests(verdict="auto", require_gain=True)["refinement"] == 2 * (1 + 4)
    assert requests(rounds=2)["refinement"] == 2 * (2 * 3 + 1)
    assert requests(rounds=2, verdict="auto")["refinement"] == 2 * 2 * 5, "nobody is asked to choose"


def test_the_entropy_of_actions_is_in_nats() -> None:
    assert action_entropy([]) == action_entropy(["up"] * 3) == 0
    assert action_entropy(["up", "down"] * 5) == pytest.approx(math.log(2))
