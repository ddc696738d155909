"""docs/questions.md: each question's cause is planted in tables made by hand, and its command finds the answer."""

import io
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from flows.cli.show import LISTS
from schemas.config import Config, ModelSection
from schemas.load import PROJECT_ROOT, dump_config
from schemas.rows import CorrectedTarget, Row, Transition
from storage.sql.render import render
from storage.sql.views import connect
from storage.store import Store
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.registry import STAGES, stages_of
from tests.support.committed import commit_rows
from tests.support.rows import (
    episode,
    evaluation,
    generation,
    improvement,
    training_row,
    training_steps,
    transitions,
)
from tests.support.stopped import begin, fail

PAGE = (PROJECT_ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
COMMANDS = {
    int(number): command
    for number, command in re.findall(r"^## (\d+)\. .*\n\n```\n(nlac .*)\n```", PAGE, re.MULTILINE)
}
RUN = Config(run="trial", model=ModelSection(dtype="float32"))
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Planted:
    """A cause, and its answer.

    Attributes:
        plant: puts the cause into a store; gives what the words in capitals stand for.
        found: whether the command's rows hold the answer.
    """

    plant: Callable[[Store], Mapping[str, str] | None]
    found: Callable[[Rows], bool]


def played(store: Store, *successes: bool, **changes: Any) -> list[Transition]:
    """Training episodes of two steps; gives their transitions, of which each has the changes."""
    episodes = [episode(n, success=success) for n, success in enumerate(successes)]
    steps = [step.model_copy(update=changes) for row in episodes for step in transitions(row)]
    commit_rows(store, "rollout", 0, {"episodes": episodes, "transitions": steps})
    return steps


def improved(store: Store, **changes: Any) -> None:
    """An action refined and distilled; the critiques have the changes."""
    first, *_ = played(store, True)
    made = improvement(first, "critic")
    made["critiques"] = [row.model_copy(update=changes) for row in made["critiques"]]
    commit_rows(store, "bellman-targets", 0, {"replay_samples": made["replay_samples"]})
    commit_rows(store, "critique", 0, {"critiques": made["critiques"], "futures": made["futures"]})
    commit_rows(store, "refinement", 0, {"refinements": made["refinements"]})
    distilled = training_row("policy-distillation", "refinements", made["refinements"][0].refinement_id, "v1")
    commit_rows(store, "policy-distillation", 0, {"training_rows": [distilled]})


def evaluated(store: Store, *rates: int, baseline: float | None = None, low: float = 0.0) -> None:
    """An evaluation of ten episodes in each iteration."""
    for iteration, successes in enumerate(rates):
        row = evaluation("p", successes, iteration=iteration)
        row = row.model_copy(
            update={"baseline": "random", "baseline_success_rate": baseline, "success_low": low}
        )
        commit_rows(store, "evaluation", iteration, {"evaluations": [row]})


def no_rate(store: Store) -> None:
    flat = {"loss": 2.0, "learning_rate": 0.0}
    rows = [row.model_copy(update=flat) for row in training_steps(3)]
    commit_rows(store, "critic-sft", 0, {"training_steps": rows})


def an_engine_failed(store: Store) -> None:
    lost = episode(status="engine_error", error="the server is gone")
    commit_rows(store, "rollout", 0, {"episodes": [episode(1), lost]})


def a_field_changed(store: Store) -> Mapping[str, str]:
    folder = store.root.parent / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = Config.model_validate({"run": "trial", "model": {"name": str(folder), "dtype": "float32"}})
    begin_iteration(store, config, 0)
    inputs = collect_fingerprint_inputs(
        STAGES["rollout"], config, 0, resolve_inputs(store, config, "rollout", 0)
    )
    commit_rows(store, "rollout", 0, {"episodes": [], "transitions": []}, fingerprint_inputs=inputs)
    longer = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_steps": 99})})
    file = store.root.parent / "changed.yaml"
    file.write_text(dump_config(longer))
    return {"RUN": "trial", "FILE": str(file)}


def a_leak(store: Store) -> None:
    label = CorrectedTarget(
        run="trial", iteration=0, corrected_id="c", target_id="t", transition_id="trial/00000/train/00000/000",
        verdict="rewritten", thought_before="he said yes", thought="if he says yes", description="won",
        leak_before=0.5, leak_after=0.0, leaks=["said yes"], attempts=1,
    )  # fmt: skip
    commit_rows(store, "cot-correction", 0, {"corrected_targets": [label]})


def a_coin(store: Store) -> None:
    """Verdicts on the played actions that have nothing to do with the outcome."""
    steps = played(store, True, True, False, False)
    rows: list[Row] = []
    for number, (step, p) in enumerate(zip(steps[::2], (0.9, 0.1, 0.9, 0.1), strict=True)):
        (row,) = improvement(step, "critic")["critiques"]
        own = {"critique_id": f"c{number}", "sample_id": f"s{number}", "action": step.action}
        rows.append(row.model_copy(update={**own, "yes_probability": p, "optimal": p > 0.5}))
    commit_rows(store, "critique", 0, {"critiques": rows})


def one_verdict(store: Store) -> None:
    first, *_ = played(store, True)
    (row,) = improvement(first, "critic")["critiques"]
    same = [row.model_copy(update={"critique_id": f"c{n}", "optimal": True}) for n in range(3)]
    commit_rows(store, "critique", 0, {"critiques": same})


def not_distilled(store: Store) -> None:
    first, *_ = played(store, True)
    row = improvement(first, "critic")["refinements"][1]
    commit_rows(
        store, "refinement", 0, {"refinements": [row.model_copy(update={"distil_reason": "unchanged"})]}
    )


def texts_were_cut(store: Store) -> None:
    cut = generation("base").model_copy(update={"finish_reason": "length"})
    played(store, True, generation=cut)


def drawn_once(store: Store) -> None:
    first, *_ = played(store, True, True)
    made = improvement(first, "critic")
    commit_rows(store, "bellman-targets", 0, {"replay_samples": made["replay_samples"]})


def two_runs(store: Store) -> None:
    for run, successes, seed in (("first", 2, 0), ("second", 6, 1)):
        store.set_config(run, 0, dump_config(Config(run=run, seed=seed)))
        commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", successes, run=run)]}, run=run)


def a_file_is_gone(store: Store) -> None:
    made = commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    (made.path / "episodes.parquet").unlink()


def computed_twice(store: Store) -> None:
    for attempt in (1, 2):
        commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", attempt)]}, attempt=attempt)


def equal_verdicts_in_a_begun_run(store: Store) -> None:
    begin(store, RUN, 0)
    one_verdict(store)


def a_stage_failed(store: Store) -> None:
    stages = stages_of(RUN, 0)
    begin(store, RUN, 0, stages[:4])
    fail(store, RUN, 0, stages[4])


def has(rows: Rows, **values: Any) -> bool:
    """Whether one row has these values."""
    return any(values.items() <= row.items() for row in rows)


def text(rows: Rows) -> str:
    return str(rows[0]["text"])


ANSWERS: Mapping[int, Planted] = {
    1: Planted(improved, lambda rows: has(rows, judged_action="9", critique="too high", refined_action="5")),
    2: Planted(
        lambda store: evaluated(store, 2, 7, 4),
        lambda rows: has(rows, iteration=1, success_rate=0.7, tokens=200, seconds=3.0),
    ),
    3: Planted(no_rate, lambda rows: has(rows, steps=3, first_loss=2.0, last_loss=2.0, highest_rate=0.0)),
    4: Planted(an_engine_failed, lambda rows: len(rows) == 1 and has(rows, error="the server is gone")),
    5: Planted(a_field_changed, lambda rows: "recompute" in text(rows) and "rollout.max_steps" in text(rows)),
    6: Planted(
        lambda store: played(store, False, action_valid=False) and None,
        lambda rows: has(rows, text="guess 0") and len(rows) == 2,
    ),
    7: Planted(
        a_leak, lambda rows: has(rows, verdict="rewritten", thought_before="he said yes", leak_after=0.0)
    ),
    8: Planted(a_coin, lambda rows: has(rows, verdicts=4, auroc=0.5, success_rate=0.5)),
    9: Planted(one_verdict, lambda rows: has(rows, critiques=3, different_verdicts=1, called_optimal=1.0)),
    10: Planted(improved, lambda rows: has(rows, proposals=2, valid=1, distilled=1, changed=1)),
    11: Planted(not_distilled, lambda rows: has(rows, distil_reason="unchanged", proposals=1)),
    12: Planted(texts_were_cut, lambda rows: has(rows, stage="rollout", cut_share=1.0)),
    13: Planted(
        lambda store: played(store, True, True, action="down") and None,
        lambda rows: has(rows, action="down", share=1.0),
    ),
    14: Planted(drawn_once, lambda rows: has(rows, transitions=4, draws_per_transition=0.25)),
    15: Planted(
        equal_verdicts_in_a_begun_run,
        lambda rows: (
            "ALARM: all verdicts are equal" in text(rows)
            and bool(
                re.search(r"rollout .* 1\.5\n", text(rows)) and re.search(r"policy +2 +10 +6\n", text(rows))
            )
        ),
    ),
    16: Planted(
        a_stage_failed,
        lambda rows: (
            "stopped at critique: StageFailed: no critique is" in text(rows) and "to go on: " in text(rows)
        ),
    ),
    17: Planted(two_runs, lambda rows: "seed: first 0, second 1" in text(rows)),
    18: Planted(
        lambda store: evaluated(store, 5, 9, baseline=0.4, low=0.3),
        lambda rows: has(rows, iteration=0, success_rate=0.5, baseline_success_rate=0.4),
    ),
    19: Planted(a_file_is_gone, lambda rows: "episodes.parquet" in text(rows)),
    20: Planted(computed_twice, lambda rows: "superseded attempt" in text(rows)),
}
"""Question -> its cause and answer."""


def test_the_page_asks_twenty_questions_and_each_is_answered_here() -> None:
    asked = re.findall(r"^## (\d+)\. .+\?$", PAGE, re.MULTILINE)
    assert list(map(int, asked)) == sorted(COMMANDS) == sorted(ANSWERS) == list(range(1, 21))


@pytest.mark.parametrize("number", sorted(COMMANDS))
def test_the_command_finds_the_answer(number: int, tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    assert not ANSWERS[number].found([{"text": ""}]), "an answer that finds itself anywhere proves nothing"
    filled = ANSWERS[number].plant(store) or {}
    words = [filled.get(word, word) for word in shlex.split(COMMANDS[number])[1:]]
    if words[0] in ("sql", "show"):
        words += ["--format", "json"]
    result = CliRunner().invoke(app, words, env={"NLAC_DATA": str(store.root)})
    assert result.exit_code == (3 if number == 19 else 0), result.output
    assert ANSWERS[number].found(answer(result, words)), result.output


def test_why_an_action_changed_can_be_read_at_80_columns(tmp_path: Path) -> None:
    store, stream = Store(tmp_path / "data"), io.BytesIO()
    improved(store)
    render(connect(store).sql(LISTS["changed"]), "table", stream, 80)
    shown = stream.getvalue().decode()
    assert max(map(len, shown.splitlines())) <= 80
    for column, value in (
        ("judged_action", "9"), ("critique", "too high"), ("refined_action", "5"), ("id", "trial/00000/draw/00000/r/1"),
    ):  # fmt: skip
        assert f"{column}  {value}\n" in shown


def answer(result: Result, words: list[str]) -> Rows:
    """The rows of a list; all that was said, as one row, of any other command."""
    return json.loads(result.stdout) if "json" in words else [{"text": result.output}]
