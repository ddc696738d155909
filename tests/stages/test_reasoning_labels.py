"""Hidden chains of thought as labels: corrected like visible ones, of a limited length, and of thinking roles alone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config, CorrectionSection, RoleSection
from storage.store import Store
from tasks.engines.protocol import Completion, Request, ScoreRequest, Scores
from tasks.pipeline.runner import run_stage
from tasks.text.correction import Rewrite, correct_label, label_reasoning
from tasks.text.formats import write_action
from tasks.text.leaks import Leak
from tests.support.committed import table
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.iterations import ROLES
from tests.support.rules import number_game, role_of

MakeConfig = Callable[..., Config]
TO_LABELS = ("rollout", "bellman-targets", "cot-correction")
FAIR = "A hint may follow. Halving the range is quick."
LEAKS = {
    "bootstrap": "The next observation shows a hint, and so it is found.",
    "refine": "The critique says that halving the range is better.",
}
REWRITTEN = "If a hint follows, it narrows the range.\nThen few numbers are left."


def reasons(request: Request) -> str | Completion:
    """The player as a reasoning model, whose backups and refinements leak in the hidden thought alone. Its corrector
    rewrites hidden thoughts of every second random stream; the others stay as they are."""
    role = role_of(request)
    if role == "correct":
        return REWRITTEN if request.sampling.seed % 2 else LEAKS["bootstrap"] + LEAKS["refine"]
    text = "Future: a hint, then it is found" if role == "bootstrap" else number_game(request)
    if role == "evaluate":
        text = text.replace("Optimal: yes", "Optimal: no") if request.sampling.seed % 3 else text
    return f"<think>\n{FAIR} {LEAKS.get(role, '')}\n</think>\n\n{text}"


heard: list[ScoreRequest] = []


def _score(request: ScoreRequest) -> Scores:
    heard.append(request)
    return Scores(tuple(tuple(-0.25 for _ in segment.encode()) for segment in request.segments))


reasons.score = _score  # type: ignore[attr-defined]


def run(store: Store, config: Config, *stages: str) -> None:
    async def work() -> None:
        for stage in stages:
            await run_stage(store, config, stage, 0)

    asyncio.run(work())


def thinking(
    make_config: MakeConfig, *, of: Callable[[str], bool] = lambda role: True, **changes: Any
) -> Config:
    roles = {role: {"engine": "rules", "structured": False, "thinking": of(role)} for role in ROLES}
    sizes = {"replay": {"transitions": 16}, "correction": {"attempts": 1}, **changes}
    return make_config("tests.stages.test_reasoning_labels:reasons", roles=roles, **sizes)


def test_a_backups_hidden_thought_is_corrected_and_begins_the_label_it_is_scored_behind(
    store: Store, make_config: MakeConfig
) -> None:
    heard.clear()
    run(store, thinking(make_config), *TO_LABELS)
    rows = table(store, "cot-correction", "corrected_targets")
    assert set(rows["status"]) == {"ok"} and set(rows["thought_before"]) == {""}
    assert set(rows["reasoning_verdict"]) == {"rewritten", "thought_dropped"}
    assert rows["verdict"].equals(rows["reasoning_verdict"].rename("verdict"))  # the worse one counts
    assert (rows["reasoning_leak_before"] > 0).all() and (rows["reasoning_leak_after"] == 0).all()
    found = dict(rows.select("reasoning_verdict", "label_reasoning").unique().rows())
    assert found == {"rewritten": REWRITTEN, "thought_dropped": None}
    assert sorted(r.reasoning or "" for r in heard) == sorted(rows["label_reasoning"].fill_null(""))
    share = store.committed("trial", "cot-correction", 0).manifest.metrics["rewritten_share"]  # type: ignore[union-attr]
    assert share == rows.filter(verdict="rewritten").height / rows.height


@pytest.mark.parametrize("family", ["qwen3", "qwq"])
def test_hidden_thoughts_are_trained_on_in_the_familys_own_form(
    family: str, store: Store, make_config: MakeConfig, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(FAMILIES[family], tmp_path / family)
    model = {"name": str(checkpoint), "context_length": 4000, "dtype": "float32", "device": "cpu"}
    config = thinking(
        make_config, model={**model, "lora": {"r": 2, "alpha": 4}}, replay={"transitions": 6},
        improvement={"states": 6},
    )  # fmt: skip
    run(store, config, *TO_LABELS, "critic-sft", "critique", "refinement", "policy-distillation")
    labels = table(store, "cot-correction", "corrected_targets")
    rows = table(store, "critic-sft", "training_rows")
    assert set(rows["status"]) == {"ok"}
    tokens = rows.filter(role="critic").join(labels, left_on="source_id", right_on="corrected_id")
    opened = {"qwen3": "<think>\n", "qwq": ""}[family]
    marks = 1 if opened else 0  # one token each; all else is bytes

    def length(text: str, hidden: str | None) -> int:
        block = len(f"{hidden}\n\n\n") + 1 + marks + len("\n") * bool(opened) if hidden else 0
        return len(text) + block + 1

    for row in tokens.iter_rows(named=True):
        assert row["label_tokens"] == length(f"Future: {row['description']}", row["label_reasoning"])
    distilled = table(store, "policy-distillation", "training_rows").filter(role="policy")
    actions = table(store, "refinement", "refinements").filter("distil")
    improved = distilled.join(actions, left_on="source_id", right_on="refinement_id")
    assert improved.height == actions.height > 0 and improved["label_reasoning"].is_not_null().any()
    for row in improved.iter_rows(named=True):
        text = write_action(row["thought"], row["action"])
        assert row["label_tokens"] == length(text, row["label_reasoning"])
    played = table(store, "rollout", "transitions")
    acted = rows.filter(role="policy").join(played, left_on="source_id", right_on="transition_id")
    assert acted.height and (acted["label_tokens"] > len(FAIR)).all()


@pytest.mark.parametrize("action", ["fresh", "replayed"])
def test_a_refined_actions_hidden_thought_is_corrected_and_a_kept_ones_is_the_policys_own(
    store: Store, make_config: MakeConfig, action: str
) -> None:
    config = thinking(make_config, improvement={"states": 12, "action": action})
    run(store, config, *TO_LABELS, "critic-sft", "critique", "refinement", "policy-distillation")
    rows = table(store, "refinement", "refinements").filter("distil")
    refined, kept = rows.filter(kind="refined"), rows.filter(kind="kept")
    assert refined.height and kept.height
    assert refined["reasoning"].str.contains("The critique says").all()
    assert not refined["label_reasoning"].fill_null("").str.contains("critique").any()
    assert {REWRITTEN, None} == set(refined["label_reasoning"])
    assert (refined["verdict"] == refined["reasoning_verdict"]).all()
    assert set(kept["label_reasoning"]) == {FAIR} and kept["reasoning_verdict"].is_null().all()
    trained = table(store, "policy-distillation", "training_rows").filter(role="policy")
    assert set(trained["source_id"]) == set(rows["refinement_id"])


def test_roles_that_do_not_think_are_trained_without(store: Store, make_config: MakeConfig) -> None:
    config = thinking(
        make_config, of=lambda role: role not in ("policy", "predict"), improvement={"states": 6}
    )
    run(store, config, *TO_LABELS, "critic-sft", "critique", "refinement")
    for stage, name in (("cot-correction", "corrected_targets"), ("refinement", "refinements")):
        rows = table(store, stage, name)
        assert rows["label_reasoning"].is_null().all() and rows["reasoning_verdict"].is_null().all()
    assert table(store, "bellman-targets", "bellman_targets")["reasoning"].is_not_null().all()


def test_a_hidden_thought_is_cut_to_its_end() -> None:
    thinks, limit = RoleSection(thinking=True), CorrectionSection(reasoning_chars=14)
    assert label_reasoning(thinks, limit, "first this, so left then") == "so left then"
    assert label_reasoning(thinks, limit, "x" * 20) == "x" * 14
    assert label_reasoning(thinks, limit, "so left") == "so left"
    assert label_reasoning(RoleSection(), limit, "so left") is None
    assert label_reasoning(thinks, limit, None) is label_reasoning(thinks, limit, "") is None


@pytest.mark.parametrize(
    ("thought", "hidden", "on_failure", "verdict", "left"),
    [
        ("fine", "fine", "drop_thought", "clean", ("fine", "fine")),
        ("leak", "fine", "drop_thought", "thought_dropped", ("", "fine")),
        ("fine", "leak", "drop_thought", "thought_dropped", ("fine", None)),
        ("fine", "leak", "drop_row", "row_dropped", ("fine", None)),
        ("fine", "mend", "drop_row", "rewritten", ("fine", "mended")),
        ("leak", "mend", "drop_thought", "thought_dropped", ("", "mended")),
    ],
)
def test_the_worse_verdict_counts_for_the_row(
    thought: str, hidden: str, on_failure: Any, verdict: str, left: tuple[str, str | None]
) -> None:
    async def rewrite(text: str, is_hidden: bool, attempt: int) -> Rewrite:
        assert is_hidden == (text == hidden and text != thought) or text in ("leak", "mend")
        return Rewrite("mended" if text == "mend" else text, None)

    def measure(text: str) -> Leak:
        return Leak(float(text in ("leak", "mend")), ())

    section = CorrectionSection(on_failure=on_failure)
    found = asyncio.run(correct_label(thought, hidden, section, measure, rewrite))
    assert (found.verdict, (found.thought.thought, found.reasoning)) == (verdict, left)
    assert found.columns["status"] == ("row_dropped" if verdict == "row_dropped" else "ok")
