"""The views that measure, each on a table made by hand."""

from typing import Any

import duckdb
import pytest

from schemas.rows import (
    BellmanTarget,
    BootstrapDraw,
    CorrectedTarget,
    Critique,
    DrawnText,
    ReplaySample,
    Row,
    SampledAction,
)
from storage.sql.measures import MEASURES
from storage.sql.views import connect
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.rows import episode, evaluation, generation, improvement, training_steps, transitions

COMMON = {"run": "trial", "iteration": 0}


def played(store: Store, *successes: bool, iteration: int = 0) -> list[Any]:
    """Training episodes of two steps; gives all transitions."""
    episodes = [episode(n, iteration=iteration, success=success) for n, success in enumerate(successes)]
    steps = [step for row in episodes for step in transitions(row)]
    commit_rows(store, "rollout", iteration, {"episodes": episodes, "transitions": steps})
    return steps


def view(store: Store, name: str, columns: str = "*") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        connect(store).sql(f"select {columns} from {name} order by all").to_arrow_table().to_pylist()
    )
    return found


def critique(
    number: int, transition: Any, action: str, p: float | None, *, round_: int = 0, **given: Any
) -> Critique:
    sample = f"trial/00000/{number:06d}"
    optimal = given.pop("optimal", None if p is None else p > 0.5)
    return Critique(
        **COMMON, critique_id=f"{sample}/c/{round_}", sample_id=sample, transition_id=transition.transition_id,
        round=round_, action_source="fresh", action_text=f"guess {action}", thought="", action=action,
        critique="", yes_probability=p, optimal=optimal, **given,
    )  # fmt: skip


def target(number: int, transition: Any, **given: Any) -> BellmanTarget:
    sample = f"trial/00000/{number:06d}"
    return BellmanTarget(
        **COMMON, target_id=sample, sample_id=sample, transition_id=transition.transition_id,
        **{"terminal": False, "thought": "t", "description": "d", "malformed": False, **given},
    )  # fmt: skip


def sample(number: int, transition: Any, iteration: int = 0) -> ReplaySample:
    return ReplaySample(
        run="trial", iteration=iteration, sample_id=f"trial/{iteration:05d}/{number:06d}",
        transition_id=transition.transition_id, draw=number, priority=1.0, scored=False, probability=0.5, weight=1.0,
    )  # fmt: skip


def commit(store: Store, stage: str, iteration: int = 0, **tables: list[Row]) -> None:
    commit_rows(store, stage, iteration, tables)


def test_every_generated_text_is_counted_once(store: Store) -> None:
    first, *_ = played(store, True)
    drawn = DrawnText(seed=1, prompt_tokens=50, completion_tokens=7, finish_reason="length")
    backup = target(
        0, first, generation=generation("target"), next_action_generation=generation("base"),
        next_future_generation=generation("target"),
        other_draws=[BootstrapDraw(status="ok", next_action_drawn=drawn, next_future_drawn=drawn)],
    )  # fmt: skip
    commit(store, "bellman-targets", bellman_targets=[backup])
    made = improvement(first, "critic")
    judged = made["critiques"][0].model_copy(
        update={"action_generation": generation("critic"), "generation": generation("critic")}
    )
    refined = [row.model_copy(update={"generation": generation("critic")}) for row in made["refinements"]]
    commit(store, "critique", critiques=[judged], futures=made["futures"])
    commit(store, "refinement", refinements=refined)
    counted = connect(store).sql(
        "select stage, role, count(*), sum(completion_tokens)::int from generations group by all order by all"
    )
    assert counted.fetchall() == [
        ("bellman-targets", "bootstrap", 1, 3), ("bellman-targets", "policy", 2, 10),
        ("bellman-targets", "predict", 2, 10), ("critique", "evaluate", 1, 3), ("critique", "policy", 1, 3),
        ("critique", "predict", 2, 6), ("refinement", "refine", 2, 6), ("rollout", "policy", 2, 6),
    ]  # fmt: skip
    costs = view(store, "token_costs", "stage, role, texts, prompt_tokens, completion_tokens")
    assert {
        "stage": "bellman-targets",
        "role": "policy",
        "texts": 2,
        "prompt_tokens": 55,
        "completion_tokens": 10,
    } in costs
    [summary] = [row for row in view(store, "stage_summary") if row["stage"] == "bellman-targets"]
    assert (summary["texts"], summary["cut_share"], summary["tokens"]) == (5, 2 / 5, 100)
    assert summary["tokens_per_second"] == pytest.approx(100 / 1.5)


def test_sampled_actions_are_texts_of_the_policy_unless_they_were_drawn_uniformly(store: Store) -> None:
    first, *_ = played(store, True)
    asked = generation("base").model_copy(update={"finish_reason": "length"})
    rows: list[Row] = [
        SampledAction(
            **COMMON, action_id=f"a{n}", sample_id="s", transition_id=first.transition_id, place="state",
            action_text="guess 1", thought="", action="1", generation=made,
        )
        for n, made in enumerate((asked, None))
    ]  # fmt: skip
    commit(store, "action-samples", sampled_actions=rows)
    [cost] = [row for row in view(store, "token_costs") if row["stage"] == "action-samples"]
    assert (cost["role"], cost["texts"], cost["prompt_tokens"], cost["completion_tokens"]) == (
        "policy",
        1,
        5,
        3,
    )
    [summary] = [row for row in view(store, "stage_summary") if row["stage"] == "action-samples"]
    assert (summary["texts"], summary["cut_share"]) == (1, 1.0)


def test_training_is_a_cost_too(store: Store) -> None:
    commit(store, "critic-sft", training_steps=training_steps(2))
    assert view(store, "token_costs", "stage, role, texts, prompt_tokens, completion_tokens") == [
        {"stage": "critic-sft", "role": "training", "texts": 2, "prompt_tokens": 100, "completion_tokens": 80}
    ]


def test_a_verdict_is_held_against_the_outcome_of_its_own_action_alone(store: Store) -> None:
    won, _, lost, _, other, _ = played(store, True, False, True)
    commit(
        store, "critique",
        critiques=[
            critique(0, won, won.action, 0.9), critique(1, won, won.action, 0.4), critique(2, lost, lost.action, 0.4),
            critique(3, other, "another action", 0.0),
            critique(4, lost, lost.action, None, status="unreadable"),
        ],
    )  # fmt: skip
    [row] = view(store, "critic_fidelity")
    assert (row["verdicts"], row["successes"]) == (3, 2)
    assert row["auroc"] == pytest.approx(0.75)  # of two pairs one is right, one is a tie
    assert row["mean_verdict"] == pytest.approx(1.7 / 3) and row["success_rate"] == pytest.approx(2 / 3)
    assert row["brier"] == pytest.approx((0.1**2 + 0.6**2 + 0.4**2) / 3)


def test_written_verdicts_count_as_zero_or_one_and_one_outcome_has_no_auroc(store: Store) -> None:
    won, *_ = played(store, True)
    commit(store, "critique", critiques=[critique(0, won, won.action, None, optimal=True)])
    [row] = view(store, "critic_fidelity")
    assert (row["auroc"], row["mean_verdict"], row["brier"]) == (None, 1.0, 0.0)


def test_the_effect_of_refinement_compares_an_action_with_the_one_it_replaces(store: Store) -> None:
    first, *_ = played(store, True)
    made = improvement(first, "critic")
    sample_id = made["refinements"][0].sample_id
    before = made["critiques"][0].model_copy(update={"yes_probability": 0.2})
    again = {"critique_id": f"{sample_id}/c/1", "round": 1, "action_text": "guess 5", "action": "5"}
    after = before.model_copy(update={**again, "yes_probability": 0.7})
    commit(store, "critique", critiques=[before])
    commit(store, "refinement", refinements=made["refinements"], critiques=[after])
    [row] = view(store, "refinement_effect", "* exclude (run, iteration)")
    assert row == {
        "proposals": 2, "valid": 1, "distilled": 1, "changed": 1, "verdict_before": 0.2, "verdict_after": 0.7,
    }  # fmt: skip


def test_leaks_are_counted_before_and_after_correction(store: Store) -> None:
    first, *_ = played(store, True)

    def corrected(number: int, verdict: Any, before: float) -> CorrectedTarget:
        ids = dict.fromkeys(("corrected_id", "target_id"), f"trial/00000/{number:06d}")
        return CorrectedTarget(
            **COMMON, **ids, transition_id=first.transition_id, verdict=verdict, thought_before="a", thought="b",
            description="d", leak_before=before, leak_after=0.0, leaks=[], attempts=0,
        )  # fmt: skip

    labels: list[Row] = [
        corrected(0, "clean", 0.0),
        corrected(1, "rewritten", 0.5),
        corrected(2, "row_dropped", 1.0),
    ]
    commit(store, "cot-correction", corrected_targets=labels)
    [row] = view(store, "leakage", "* exclude (run, iteration)")
    assert row == {
        "source_table": "corrected_targets", "thoughts": 3, "leaking": 2, "leak_before": 0.5, "leak_after": 0.0,
        "rewritten": 1, "thought_dropped": 0, "row_dropped": 1,
    }  # fmt: skip


def test_replay_is_told_by_age_and_by_use(store: Store) -> None:
    old, _ = played(store, True)
    new, _ = played(store, True, iteration=1)
    foreign = transitions(episode(run="other"))
    commit_rows(
        store, "rollout", 0, {"episodes": [episode(run="other")], "transitions": foreign}, run="other"
    )
    drawn: list[Row] = [sample(n, row, 1) for n, row in enumerate((old, old, new, foreign[0]))]
    failed = target(2, new, status="malformed")
    commit(
        store,
        "bellman-targets",
        1,
        replay_samples=drawn,
        bellman_targets=[target(0, old), target(1, old), failed],
    )
    assert view(store, "replay_age", "run, iteration, age, draws, share") == [
        {"run": "trial", "iteration": 1, "age": age, "draws": draws, "share": draws / 4}
        for age, draws in ((0, 1), (1, 2), (None, 1))
    ]
    used = view(store, "replay_use", "run, iteration, transitions, draws, draws_per_transition, backed_up")
    assert [tuple(row.values()) for row in used] == [
        ("other", 0, 2, 0, 0.0, 0), ("trial", 0, 2, 2, 1.0, 1), ("trial", 1, 2, 1, 0.5, 0),
    ]  # fmt: skip
    assert view(store, "replay_use", "never_backed_up_share")[0]["never_backed_up_share"] == 0.5


def test_the_learning_curve_says_what_the_policy_had_cost(store: Store) -> None:
    for iteration, successes in ((0, 2), (1, 6)):
        played(store, True, iteration=iteration)
        rows: list[Row] = [evaluation(f"p{iteration}", successes, iteration=iteration)]
        rows.append(evaluation(f"p{iteration}", 9, iteration=iteration, split="validation"))
        commit(store, "evaluation", iteration, evaluations=rows)
    found = view(
        store, "learning_curve", "iteration, policy_version, success_rate, environment_steps, tokens, seconds"
    )
    assert [tuple(row.values()) for row in found] == [
        (0, "p0", 0.2, 2, 200, 3.0),
        (1, "p1", 0.6, 4, 400, 6.0),
    ]


def test_the_comparison_counts_simulated_steps_and_tells_tokens_apart(store: Store) -> None:
    for iteration in (0, 1):
        first, *_ = played(store, True, iteration=iteration)
        seen = [
            futures.model_copy(update={"iteration": iteration})
            for futures in improvement(first, "p")["futures"]
        ]
        rollouts = [
            seen[0].model_copy(
                update={"source": "rollout", "description": "Environment: a Agent: b Environment: c"}
            ),
            seen[1].model_copy(update={"description": "Environment: foreseen, not played"}),
        ]
        commit(store, "critique", iteration, futures=rollouts)
        steps = [row.model_copy(update={"iteration": iteration, "tokens": 30}) for row in training_steps(2)]
        commit(store, "policy-distillation", iteration, training_steps=steps)
        commit(
            store, "evaluation", iteration, evaluations=[evaluation("p", 2 + iteration, iteration=iteration)]
        )
    commit(store, "evaluation", 2, evaluations=[evaluation("p", 9, iteration=2, split="validation")])
    alone = [evaluation("base", 1, run="react")]
    commit_rows(store, "evaluation", 0, {"evaluations": alone}, run="react")
    found = view(store, "comparison", "* exclude (policy_version, success_low, success_high)")
    assert [tuple(row.values()) for row in found] == [
        # steps: 2 played and 2 simulated an iteration; tokens: 100 a stage, of which 60 in training steps
        ("react", 0, 0.1, 0, 0, 0, 0, 0.0),
        ("trial", 0, 0.2, 4, 2, 240, 60, 4.5),
        ("trial", 1, 0.3, 8, 4, 480, 120, 9.0),
    ]


def test_every_measure_is_empty_without_data(store: Store) -> None:
    database: duckdb.DuckDBPyConnection = connect(store)
    for name in MEASURES:
        assert database.sql(f"select * from {name}").fetchall() == []
