"""Exports the rows of a training stage as chat rows of prompt and completion, for other trainers.

A row is a conversational prompt-completion example of TRL's SFTTrainer (its "Dataset formats"): {"prompt": [{"role",
"content"}, ...], "completion": [{"role": "assistant", "content"}]}. Further keys are `chat_template_kwargs` for the
template, `tools` as JSON if calls are native, `id` (joins to the stage's source table), `weight` (importance weight
of its loss), of a turn that the policy sampled `advantage`, and where a value head is to predict one `value` (with
algorithm sac the completion of a critic row is empty).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from storage.files import beside
from storage.store import Committed, Store
from tasks.algorithms import algorithm_of
from tasks.chat.messages import Message
from tasks.chat.templates import template_arguments
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.models import resolve_model
from tasks.export.policy import ExportError
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import frozen_config
from tasks.runtime.context import StageContext, stage_context

CRITIC_SFT = "critic-sft"


def export_rows(store: Store, run: str, stage: str, target: Path, iteration: int | None = None) -> int:
    """Write the rows of its own role that a stage trained on, without the mixed-in rows of the other role, general
    chat, and rows that were too long.

    Args:
        store: the artifact store.
        run: the run.
        stage: critic-sft or policy-distillation.
        target: a new file, .jsonl or .parquet; its folder is created.
        iteration: None takes the newest in which the stage is committed.

    Returns:
        Number of rows.

    Raises:
        ExportError: the stage is not committed there, its inputs or prompts have changed since, or the file exists or
            has another suffix.
        tasks.engines.models.ModelError: the model's tokenizer is not available.
        tasks.runtime.stage.StageFailed: what the stage read is no longer committed.
    """
    if target.suffix not in (".jsonl", ".parquet"):
        raise ExportError(f"{target}: the name must end in .jsonl or .parquet")
    if target.exists():
        raise ExportError(f"{target}: exists, and nothing is overwritten; choose another name")
    committed = _committed(store, run, stage, iteration)
    number = committed.manifest.iteration
    config = frozen_config(store, run, number)
    if config is None:
        raise ExportError(
            f"iteration {number} of run '{run}' has lost its config.yaml; restore it from a copy"
        )
    decision = decide(store, config, stage, number)
    if not decision.reuse:
        raise ExportError(
            f"what {stage} of iteration {number} was trained on is no longer what is there ({decision.reasons[0]}); "
            f"compute it again first: prefect deployment run nlac/{stage} -p iteration={number} "
            f"-p run={run}"
        )
    ctx = stage_context(
        config, algorithm_of(config), stage, decision.inputs, store.cache_dir, iteration=number
    )
    role = "critic" if stage == CRITIC_SFT else "policy"
    trained = committed.scan("training_rows").filter(pl.col("status") == "ok", pl.col("role") == role)
    ids = set(trained.select("source_id").collect()["source_id"])
    chat = load_chat_tokenizer(resolve_model(config.model), config.model.revision)
    rows = [chat_row(chat, example) for example in _examples(ctx, ids) if example.row_id in ids]
    _write(rows, target)
    return len(rows)


def _examples(ctx: StageContext, ids: set[str]) -> list[Example]:
    """The examples of the stage's own role, made as the stage made them; those of `ids` at least."""
    if ctx.stage != CRITIC_SFT:
        return ctx.algorithm.distils.remake(ctx, ids)
    return ctx.algorithm.critic.remake(ctx)


def chat_row(chat: ChatTokenizer, example: Example) -> dict[str, Any]:
    """An example as a row. Its prompt is made fit for the model's own chat template, so that trainers can hand it to
    that as it is."""
    answer = example.answer or Message(role="assistant", content="".join(example.segments))
    prompt, tools = chat.fit(example.messages, example.tools)
    (said,), _ = chat.fit([answer], tools)
    if example.reasoning:
        said["content"] = chat.reasoning_text(example.reasoning, whole=True) + said["content"]
    return {
        "prompt": prompt,
        "completion": [said],
        **({"tools": json.dumps(list(tools), ensure_ascii=False)} if tools else {}),
        "chat_template_kwargs": template_arguments(thinking=bool(example.reasoning)),
        "id": example.row_id,
        "weight": example.weight,
        **({"advantage": example.sampled.advantage} if example.sampled else {}),
        **({"value": example.value.target} if example.value else {}),
    }


def _committed(store: Store, run: str, stage: str, iteration: int | None) -> Committed:
    known = store.iterations(run)
    for number in reversed(known) if iteration is None else [iteration]:
        found = store.committed(run, stage, number)
        if found is not None:
            found.check(content=False)
            return found
    where = "no iteration" if iteration is None else f"iteration {iteration}"
    raise ExportError(
        f"{stage} is committed in {where} of run '{run}' (there are iterations: "
        f"{', '.join(map(str, known)) or 'none'}); run it first: prefect deployment run nlac/iteration "
        f"-p run={run}"
    )


def _write(rows: list[dict[str, Any]], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = beside(target)
    try:
        if target.suffix == ".parquet":
            pl.DataFrame(rows).write_parquet(aside)
        else:
            aside.write_text("".join(_lines(rows)), encoding="utf-8")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
