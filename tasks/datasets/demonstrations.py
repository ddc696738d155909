"""Demonstrations out of a Parquet file. A row is one answer of one role, with what its prompt is rendered from.

The prompts are not in the file. They are rendered like any other, so a demonstration follows the templates and the
chat format of the model that learns from it.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import ValidationError

from schemas.config.roles import UNTRAINED
from schemas.frames import frame_schema
from schemas.rows import Demonstration, Row
from storage.history import State, Turn
from tasks.datasets.example import Example
from tasks.datasets.sft_examples import natively
from tasks.prompting.role_prompts import (
    Attempt,
    BackupInputs,
    backup_prompt,
    evaluate_prompt,
    policy_prompt,
    predict_prompt,
    refine_prompt,
)
from tasks.prompting.truncation import Prompt
from tasks.runtime.context import StageContext
from tasks.runtime.stage import StageFailed
from tasks.text.formats import (
    action_regex,
    future_regex,
    future_segments,
    read_action,
    read_future,
    verdict_regex,
    write_action,
    write_verdict,
)

DemonstratedRole = Literal["policy", "predict", "bootstrap", "evaluate", "refine"]

COLUMNS = [name for name in Demonstration.model_fields if name not in {*Row.model_fields, "demonstration_id"}]
"""Of the file; those with a default may be missing."""
REQUIRED = [name for name in COLUMNS if Demonstration.model_fields[name].is_required()]
# What a role's prompt and answer need beyond those.
NEEDS: dict[str, tuple[str, ...]] = {
    "policy": (),
    "predict": ("action_text",),
    "bootstrap": ("action_text", "next_observation", "reward"),
    "evaluate": ("action_text", "futures", "optimal"),
    "refine": ("attempts",),
}


class BrokenDemonstrations(StageFailed):
    """A file of demonstrations can't be used; the message names the file and the column."""


def read_demonstrations(path: Path) -> pl.LazyFrame:
    """The columns of a file that are a demonstration's; further ones are ignored.

    Raises:
        BrokenDemonstrations: it is no Parquet file, or a column is missing or of another type.
    """
    try:
        frame = pl.scan_parquet(path)
        found = frame.collect_schema()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BrokenDemonstrations(f"{path}: can't be read as Parquet ({error})") from error
    known = frame_schema(Demonstration)
    for name in REQUIRED:
        if name not in found:
            raise BrokenDemonstrations(f"{path}: column {name} is missing; it needs {', '.join(REQUIRED)}")
    for name in (n for n in COLUMNS if n in found and found[n] not in (known[n], pl.Null)):
        raise BrokenDemonstrations(f"{path}: column {name} is {found[name]}, and must be {known[name]}")
    return frame.select(name for name in COLUMNS if name in found)


def demonstrations_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Demonstrations as the table that a file of them holds; columns that a row lacks are empty."""
    known = frame_schema(Demonstration)
    schema = {name: known[name] for name in COLUMNS}
    return pl.DataFrame([dict.fromkeys(COLUMNS) | dict(row) for row in rows], schema=schema, orient="row")


def load_demonstrations(ctx: StageContext, path: Path) -> list[Demonstration]:
    """All rows of a file; one that can't be trained on has the status `unusable` and the reason."""
    common = {"run": ctx.config.run, "iteration": ctx.iteration}
    rows = []
    for number, content in enumerate(read_demonstrations(path).collect().iter_rows(named=True)):
        ids = {**common, "demonstration_id": f"{ctx.config.run}/demonstration/{number:06d}"}
        given = {name: value for name, value in content.items() if value is not None}
        try:
            row = Demonstration(**ids, **given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BrokenDemonstrations(f"{path}, row {number}: {where}: {first['msg']}") from error
        if fault := _fault(ctx, row):
            row = row.model_copy(update={"status": "unusable", "error": fault})
        rows.append(row)
    return rows


def _fault(ctx: StageContext, row: Demonstration) -> str | None:
    """Why a row is no answer of its role."""
    for name in NEEDS[row.role]:
        if getattr(row, name) is None:
            return f"{name} is empty; a demonstration of role {row.role} needs it"
    text = "".join(segments(ctx, row))
    form = ctx.environment.action_format
    if row.role in ("policy", "refine") and not read_action(text, form).valid:
        return f"answer: {row.answer!r} is no action of the environment ({form.description})"
    if row.role in ("predict", "bootstrap") and read_future(text).malformed:
        return "answer is empty; a future needs a description"
    section = ctx.config.role(row.role)
    if section.structured and not re.fullmatch(_grammar(ctx, row.role), text):
        return (
            f"{text[:80]!r} is not in the format that roles.{row.role} is sampled under; raise its line_chars "
            f"({section.line_chars}), or set structured to false"
        )
    return None


def _grammar(ctx: StageContext, role: DemonstratedRole) -> str:
    """The regular expression that a role is held to where it is structured."""
    chars = ctx.config.role(role).line_chars
    match role:
        case "policy" | "refine":
            return action_regex(ctx.environment.action_format, chars)
        case "evaluate":
            return verdict_regex(chars)
        case "predict" | "bootstrap":
            return future_regex(chars)


def segments(ctx: StageContext, row: Demonstration) -> tuple[str, ...]:
    """The answer as its role writes it."""
    if row.role in ("policy", "refine"):
        return (write_action(row.thought, row.answer),)
    if row.role == "evaluate":
        reason_first = ctx.config.roles.evaluate.thinking
        return (write_verdict(bool(row.optimal), row.answer, reason_first=reason_first),)
    return future_segments(row.thought, row.answer)


def shown_state(row: Demonstration) -> State:
    """s."""
    return State(tuple(Turn(t.observation, t.answer) for t in row.turns), row.observation)


def prompt(ctx: StageContext, row: Demonstration) -> Prompt:
    """The prompt that it answers."""
    state, action, label = shown_state(row), row.action_text or "", segments(ctx, row)
    match row.role:
        case "policy":
            return policy_prompt(ctx.prompts, state, label=label, trains=True)
        case "predict":
            return predict_prompt(ctx.prompts, state, action, label=label, trains=True)
        case "evaluate":
            return evaluate_prompt(ctx.prompts, state, action, row.futures or [], label=label, trains=True)
        case "refine":
            tried = [Attempt(a.action_text, a.optimal, a.critique) for a in row.attempts or []]
            return refine_prompt(ctx.prompts, state, tried, label=label, trains=True)
        case "bootstrap":
            seen, reward = row.next_observation or "", row.reward or 0.0
            after = row.next_action_text
            read = BackupInputs(state, action, seen, reward, after is None, after, row.next_future)
            return backup_prompt(ctx.prompts, read, label=label, trains=True)


def rehearsed_examples(ctx: StageContext) -> list[Example]:
    """The warm start's demonstrations of the untrained roles.

    Raises:
        StageFailed: it had none.
    """
    rows = [row for row in ctx.inputs.rows("demonstrations") if row.role in UNTRAINED]
    if not (examples := demonstration_examples(ctx, rows)):
        raise StageFailed(
            f"rehearse_share: the warm start holds no usable demonstration of {', '.join(UNTRAINED)}; add some to "
            "warm_start.file, or set the share to 0"
        )
    return examples


def demonstration_examples(ctx: StageContext, rows: list[Demonstration]) -> list[Example]:
    """The usable ones, as training examples."""
    usable = [(row, prompt(ctx, row)) for row in rows if row.status == "ok"]
    examples = [
        Example(row.demonstration_id, "demonstration", p.messages, segments(ctx, row), dropped=p.dropped)
        for row, p in usable
    ]
    return [
        natively(ctx, example, shown_state(row)) if row.role == "policy" else example
        for (row, _), example in zip(usable, examples, strict=True)
    ]
