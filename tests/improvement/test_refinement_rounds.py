"""Improving one action: what is tried, judged, chosen, corrected and distilled, by improvers who follow a script."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from storage.store import Store
from tasks.engines.protocol import ScoreRequest, Scores
from tasks.export.rows import export_rows
from tasks.measures.entropy import action_entropy
from tasks.pipeline.iterations import run_stages
from tasks.pipeline.registry import stages_of
from tests.support import improvement_rules
from tests.support.committed import table
from tests.support.improvement_rules import Script
from tests.support.iterations import Iterate

MakeConfig = Callable[..., Config]
RULES = "tests.support.improvement_rules:scripted"


def run_until(store: Store, config: Config, last: str) -> None:
    """The stages of iteration 0 up to one."""
    stages = stages_of(config, 0)
    asyncio.run(run_stages(store, config, stages[: stages.index(last) + 1]))


def scripted(make_config: MakeConfig, **changes: Any) -> Config:
    """One state is improved in three rounds, by improvers who follow a script."""
    roles = {role: {"engine": "rules", "structured": False} for role in ("policy", "evaluate", "refine")}
    improvement = {"states": 1, "rounds": 3}
    base = {"roles": roles, "improvement": improvement, "correction": {"enabled": False}}
    return make_config(RULES, **{**base, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_config: MakeConfig) -> Path:
    """The stages before the improvement, which no script changes."""
    root = tmp_path_factory.mktemp("trained") / "data"
    run_until(Store(root), scripted(make_config), "critic-sft")
    return root


def improve(
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    store: Store,
    make_config: MakeConfig,
    script: Script,
    **changes: Any,
) -> pl.DataFrame:
    """Refinements of the only state, by round."""
    monkeypatch.setattr(improvement_rules, "SCRIPT", script)
    shutil.copytree(trained, store.root, symlinks=True)
    run_until(store, scripted(make_config, **changes), "refinement")
    return table(store, "refinement", "refinements").sort("round")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdicts", "proposals", "choice", "rows", "distilled"),
    [
        # Each row: kind, number, status. The number of the action to improve is written 0, and so is a proposal of it.
        (["no", "yes"], [2], "", [("refined", 2, "ok")], 2),
        (["no", "no", "yes"], [2, 3], "", [("refined", 2, "ok"), ("refined", 3, "ok")], 3),
        (["no"] * 4, [2, 3, 4], "2", [*[("refined", n, "ok") for n in (2, 3, 4)], ("chosen", 2, "ok")], 2),
        (["no"] * 4, [2, 3, 4], "1", [*[("refined", n, "ok") for n in (2, 3, 4)], ("chosen", 0, "ok")], 0),
        (["no"] * 4, [2, 3, 4], "the best", [
            *[("refined", n, "ok") for n in (2, 3, 4)], ("chosen", 0, "unreadable_choice")
        ], None),
        # What can't be judged or played is no attempt: the choice is among those before it ...
        (["no", "no", "hm"], [2, 3], "2", [
            ("refined", 2, "ok"), ("refined", 3, "unjudged"), ("chosen", 2, "ok")
        ], 2),
        (["no", "no"], [2, 99], "2", [
            ("refined", 2, "ok"), ("refined", 99, "invalid_action"), ("chosen", 2, "ok")
        ], 2),
        # ... and where there is none, nothing is distilled, and nobody is asked to choose.
        (["no", "hm"], [2], "1", [("refined", 2, "unjudged")], None),
        (["no"], [99], "1", [("refined", 99, "invalid_action")], None),
        # An action called not optimal is not distilled for want of another, unless it is judged again.
        (["no"] * 4, [0, 0, 0], "2", [*[("refined", 0, "ok")] * 3, ("chosen", 0, "ok")], None),
        (["no", "yes"], [0], "", [("refined", 0, "ok")], 0),
    ],
)  # fmt: skip
def test_rounds_end_with_an_optimal_action_or_a_choice_among_those_tried(
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    store: Store,
    make_config: MakeConfig,
    verdicts: list[str],
    proposals: list[int],
    choice: str,
    rows: list[tuple[str, int, str]],
    distilled: int | None,
) -> None:
    script = Script(verdicts, proposals, choice=choice)
    made = improve(monkeypatch, trained, store, make_config, script)
    begun = table(store, "critique", "critiques").row(0, named=True)

    def number(action_text: str) -> int:
        written = int(action_text.rpartition("[")[2].rstrip("]"))
        return 0 if f"[{written}]" == begun["action"] else written

    assert list(zip(made["kind"], map(number, made["action_text"]), made["status"], strict=True)) == rows
    assert [number(text) for text in made.filter("distil")["action_text"]] == (
        [] if distilled is None else [distilled]
    )
    assert len(script.prompts("evaluate")) == len(verdicts) and len(script.prompts("refine")) == len(
        proposals
    )
    assert len(script.prompts("choose")) == ("chosen" in made["kind"])


def test_the_refiner_and_the_choice_read_every_earlier_action_with_its_critique(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig
) -> None:
    script = Script(["no"] * 4, [2, 3, 4], choice="3")
    made = improve(monkeypatch, trained, store, make_config, script)
    begun = table(store, "critique", "critiques").row(0, named=True)
    tried = [begun["action_text"], *made.filter(kind="refined")["action_text"]]
    prompts = [*script.prompts("refine"), *script.prompts("choose")]
    assert len(prompts) == 4
    for shown, prompt in enumerate(prompts, 1):
        for number, text in enumerate(tried, 1):
            told = f"Answer {number}:\n{text}\nEvaluation {number}: not optimal. critique number {number}"
            assert (told in prompt) == (number <= shown)
    # Each row says which critique it answers to: the last one before it.
    later = table(store, "refinement", "critiques").sort("round")
    assert made["critique_id"].to_list() == [begun["critique_id"], *later["critique_id"]]


LEAKING = "The critique says to go lower"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rewrites", "on_failure", "verdict", "thought", "status"),
    [
        (["lower ones are left"], "drop_thought", "rewritten", "lower ones are left", "ok"),
        ([LEAKING, "lower ones are left"], "drop_thought", "rewritten", "lower ones are left", "ok"),
        ([LEAKING], "drop_thought", "thought_dropped", "", "ok"),
        ([LEAKING], "drop_row", "row_dropped", "", "row_dropped"),
    ],
)
def test_a_refined_thought_that_leaks_is_rewritten_or_dropped_before_it_is_distilled(
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    store: Store,
    make_config: MakeConfig,
    rewrites: list[str],
    on_failure: str,
    verdict: str,
    thought: str,
    status: str,
) -> None:
    script = Script(["no"], [2], thought=LEAKING, rewrites=rewrites)
    correction = {"on_failure": on_failure, "attempts": 2}
    one = {"states": 1, "rounds": 1}
    [row] = improve(
        monkeypatch, trained, store, make_config, script, improvement=one, correction=correction
    ).to_dicts()
    assert (row["verdict"], row["thought"], row["status"]) == (verdict, thought, status)
    assert row["thought_before"] == LEAKING and row["leak_before"] > 0
    assert row["leak_after"] == 0 and row["distil"] == (status == "ok")


@pytest.mark.slow
def test_what_is_distilled_is_the_corrected_thought_with_the_refined_action(
    monkeypatch: pytest.MonkeyPatch, store: Store, make_config: MakeConfig, tmp_path: Path
) -> None:
    rewritten = "lower ones are left"
    script = Script(["no"] * 3, [2, 3, 4], thought=LEAKING, rewrites=[rewritten])
    monkeypatch.setattr(improvement_rules, "SCRIPT", script)
    roles = {role: {"engine": "rules", "structured": False} for role in ("policy", "evaluate", "refine")}
    run_until(store, make_config(RULES, roles=roles, improvement={"states": 3}), "policy-distillation")
    file = tmp_path / "rows.jsonl"
    export_rows(store, "trial", "policy-distillation", file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    answers = sorted(row["completion"][-1]["content"] for row in rows)
    assert answers == [f"Thought: {rewritten}\nAction: [{n}]" for n in (2, 3, 4)]
    assert not any("critique" in message["content"] for row in rows for message in row["prompt"])


@pytest.mark.slow
@pytest.mark.parametrize("action", ["fresh", "replayed"])
def test_the_action_to_improve_is_sampled_anew_or_the_one_of_replay(
    store: Store, make_config: MakeConfig, action: str
) -> None:
    run_until(store, make_config(improvement={"action": action}), "critique")
    rows = table(store, "critique", "critiques").join(
        table(store, "rollout", "transitions"), on="transition_id", suffix="_t"
    )
    assert rows.height > 3 and set(rows["action_source"]) == {action}
    same = rows["action_generation"] == rows["generation_t"]
    if action == "replayed":
        assert rows["action_text"].equals(rows["raw_action"]) and same.all()
    else:
        assert not rows["action_text"].equals(rows["raw_action"]) and not same.any()


@pytest.mark.slow
def test_an_optimal_action_is_kept_without_a_call_and_others_are_refined(
    store: Store, make_config: MakeConfig, iterate: Iterate
) -> None:
    iterate(
        make_config(
            improvement={"states": 20}, replay={"transitions": 60}, rollout={"episodes": 10, "max_steps": 6}
        )
    )
    rows = table(store, "refinement", "refinements").join(
        table(store, "critique", "critiques"), on="critique_id", suffix="_c"
    )
    kept, refined = rows.filter(kind="kept"), rows.filter(kind="refined")
    assert kept.height and refined.height
    assert kept["optimal"].all() and not refined["optimal"].any()
    assert (kept["action"] == kept["action_c"]).all() and kept["generation"].struct.field(
        "seed"
    ).is_null().all()
    reasons = {"kept", "refined", "unchanged", "failed"}
    assert set(rows["distil_reason"]) <= reasons and set(kept["distil_reason"]) == {"kept"}
    played = table(store, "rollout", "transitions")
    for stage, name, actions in (
        ("rollout", "action_entropy", played["action"]),
        ("rollout", "first_action_entropy", played.filter(step=0)["action"]),
        ("critique", "action_entropy", table(store, "critique", "critiques")["action"]),
        ("policy-distillation", "distilled_action_entropy", rows.filter("distil")["action"]),
    ):
        committed = store.committed("trial", stage, 0)
        assert committed and committed.manifest.metrics[name] == pytest.approx(action_entropy(actions))
    assert rows.filter("distil")["valid"].all()
    assert not rows.filter(~pl.col("valid"))["distil"].any()
    assert (rows.filter(~pl.col("valid"))["status"] == "invalid_action").all()


@pytest.mark.slow
def test_more_rounds_critique_each_refinement_and_end_with_a_choice(
    store: Store, make_config: MakeConfig, iterate: Iterate
) -> None:
    iterate(
        make_config(
            improvement={"states": 20, "rounds": 2, "futures": 3},
            replay={"transitions": 60},
            rollout={"episodes": 10, "max_steps": 6},
        )
    )
    rows = table(store, "refinement", "refinements")
    later = table(store, "refinement", "critiques")
    chosen = rows.filter(kind="chosen")
    assert chosen.height and (chosen["round"] == 3).all()
    assert set(later["round"]) == {1, 2}
    assert (later["action_source"] == "refined").all()
    futures = table(store, "refinement", "futures")
    assert futures.group_by("critique_id").len()["len"].unique().to_list() == [3]
    assert rows.filter("distil").group_by("sample_id").len()["len"].max() == 1


@pytest.mark.slow
def test_an_unchanged_action_that_nobody_judged_again_is_not_distilled(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig
) -> None:
    script = Script(["no"], [0])
    one = {"states": 1, "rounds": 1}
    [row] = improve(monkeypatch, trained, store, make_config, script, improvement=one).to_dicts()
    assert (row["status"], row["changed"], row["distil"]) == ("ok", False, False)
    assert row["distil_reason"] == "unchanged"


JUDGE = {
    "engines": {
        "rules": {"backend": "scripted", "rules": RULES},
        "judge": {"backend": "scripted", "rules": "tests.support.improvement_rules:weighed"},
    },
    "roles": {
        "policy": {"engine": "rules", "structured": False},
        "evaluate": {"engine": "judge", "structured": False},
        "refine": {"engine": "rules", "structured": False},
    },
}
"""An evaluator that scores."""


@pytest.mark.slow
@pytest.mark.parametrize("structured", [False, True])
def test_scored_verdicts_choose_the_most_probable_action_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig, structured: bool
) -> None:
    script = Script(proposals=[2, 3, 4], shares=[0.3, 0.2, 0.45, 0.4])
    roles = {**JUDGE["roles"], "evaluate": {"engine": "judge", "structured": structured}}
    section = {"states": 1, "rounds": 3, "verdict": "auto"}
    changes = {**JUDGE, "roles": roles, "improvement": section}
    made = improve(monkeypatch, trained, store, make_config, script, **changes)
    assert made["distil_reason"].to_list() == ["not_final"] * 3 + ["chosen"]
    chosen = made.row(3, named=True)
    assert chosen["action"] == "[3]" and chosen["generation"] == made.row(1, named=True)["generation"]
    assert not script.prompts("choose") and len(script.prompts("evaluate")) == 4
    judged = [table(store, stage, "critiques").sort("round") for stage in ("critique", "refinement")]
    assert [p for rows in judged for p in rows["yes_probability"]] == pytest.approx(script.shares)
    assert not any(judged[1]["optimal"]) and judged[1]["critique"].to_list()[0] == "critique number 2"
    # The verdict is scored first, and the reason is written for it.
    assert [segments for _, segments in script.scored[:2]] == [("Optimal:", " yes"), ("Optimal:", " no")]
    told = ["You have found: Optimal: no" in prompt for prompt in script.prompts("evaluate")]
    assert told == [not structured] * 4, "a structured answer is held to the verdict"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "reasons", "distilled"),
    [
        ([0.3, 0.31], ["gain"], ["[2]"]),
        ([0.3, 0.3], ["no_gain"], []),
        ([0.3, 0.2], ["no_gain"], []),
        ([0.7], ["kept"], None),
    ],
)
def test_a_required_gain_distils_more_probable_actions_alone(
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    store: Store,
    make_config: MakeConfig,
    shares: list[float],
    reasons: list[str],
    distilled: list[str] | None,
) -> None:
    script = Script(proposals=[2], shares=shares)
    section = {"states": 1, "rounds": 1, "verdict": "auto", "require_gain": True}
    made = improve(monkeypatch, trained, store, make_config, script, improvement=section, **JUDGE)
    begun = table(store, "critique", "critiques")["action"].to_list()
    assert made["distil_reason"].to_list() == reasons
    assert made.filter("distil")["action"].to_list() == (begun if distilled is None else distilled)


@pytest.mark.slow
def test_an_evaluator_that_thinks_gives_its_reason_and_then_its_verdict_is_scored(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig
) -> None:
    script = Script(shares=[0.8])
    thinking = {**JUDGE["roles"], "evaluate": {**JUDGE["roles"]["evaluate"], "thinking": True}}
    section = {"states": 1, "verdict": "auto"}
    changes = {**JUDGE, "roles": thinking, "improvement": section}
    [row] = improve(monkeypatch, trained, store, make_config, script, **changes).to_dicts()
    [critique] = table(store, "critique", "critiques").to_dicts()
    assert (critique["critique"], critique["optimal"], row["kind"]) == ("critique number 1", True, "kept")
    assert script.scored[0][1] == ("Reason: critique number 1\nOptimal:", " yes")


@pytest.mark.slow
def test_a_cap_leaves_so_many_rows_of_an_action_in_a_state(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig
) -> None:
    script = Script(["no"] * 20, [2] * 20)
    section = {"states": 20, "rounds": 1, "max_rows_per_action": 1}
    made = improve(monkeypatch, trained, store, make_config, script, improvement=section)
    begun = table(store, "rollout", "transitions").filter(step=0).select("transition_id")
    first = made.filter(status="ok").join(begun, on="transition_id")
    assert first.height > 1 and sorted(first["distil_reason"]) == ["refined"] + ["surplus"] * (
        first.height - 1
    )
    committed = store.committed("trial", "refinement", 0)
    assert committed is not None
    manifest = committed.manifest
    assert manifest.metrics["surplus_rows"] >= first.height - 1
    assert manifest.metrics["distilled_action_entropy"] == 0 < manifest.metrics["action_entropy"]


@pytest.mark.slow
def test_both_verdicts_are_scored_together_so_that_their_prompt_is_read_once(
    monkeypatch: pytest.MonkeyPatch, trained: Path, store: Store, make_config: MakeConfig
) -> None:
    script, alone = Script(proposals=[2], shares=[0.3, 0.2]), improvement_rules.weighed.score
    both: list[asyncio.Barrier] = []

    async def score(request: ScoreRequest) -> Scores:
        if not both or both[-1].n_waiting == 0:
            both.append(asyncio.Barrier(2))
        scores = alone(request)
        async with asyncio.timeout(60):
            await both[-1].wait()
        return scores

    monkeypatch.setattr(improvement_rules.weighed, "score", score)
    section = {"states": 1, "rounds": 1, "verdict": "auto"}
    improve(monkeypatch, trained, store, make_config, script, **JUDGE, improvement=section)
    assert [segments[-1] for _, segments in script.scored] == [" yes", " no"]
