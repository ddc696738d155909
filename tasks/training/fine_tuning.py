"""What all training stages share: run the trainer, and turn its records into rows."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from schemas.config import Config, FineTuningSection, TrainingSection
from schemas.rows import Row, TrainingRow, TrainingStep
from tasks.datasets.chats import general_chat
from tasks.datasets.demonstrations import rehearsed_examples
from tasks.datasets.example import Example
from tasks.lean_imports import lean_transformers
from tasks.runtime.context import StageContext
from tasks.runtime.stage import StageFailed
from tasks.training.job import MixedRows, PolicyGradient, Rows, Start, TrainingJob, ValueLoss
from tasks.training.launch import train_in_processes
from tasks.training.records import StepRecord, TrainingError, TrainingResult


@dataclass(frozen=True)
class Source:
    """Examples and the table their ids belong to."""

    table: str
    examples: Sequence[Example]


@dataclass(frozen=True)
class Trained:
    """A finished fine-tuning, as rows and metrics."""

    result: TrainingResult
    rows: list[TrainingRow]
    steps: list[TrainingStep]
    metrics: dict[str, float]


async def fine_tune(
    ctx: StageContext,
    *,
    section: Literal["critic", "policy", "warm_start"],
    main: Source,
    other: Source | None = None,
    moves_target: bool,
    scores: bool = True,
    may_be_none: bool = False,
) -> Trained:
    """Train from `inputs.adapters["start"]`; leaves adapter, target and optimizer state in the workspace.

    Args:
        ctx: the stage's context; its inputs hold adapters "start" and "target", "anchor" if the KL anchor ties to
            one, and the files "optimizer", "value_head" and "target_value_head" if carried.
        section: training section of the configuration, which also names the adapter's kind.
        main: the stage's own rows.
        other: rows of the other role, mixed in by the section's share. General chat and rehearsed demonstrations are
            added here.
        moves_target: whether the target parameters follow these steps.
        scores: whether the scored segments of its own rows are scored before the first step.
        may_be_none: whether there may be no own row; then the parameters stay as they are.

    Raises:
        StageFailed: no valid row, or the training failed; no adapter is written.
    """
    workspace = ctx.workspace
    if workspace is None:
        raise ValueError("a training stage needs a workspace")
    version = f"{section}@{ctx.iteration:05d}:{workspace.name}"
    mix = ctx.algorithm.mix(ctx.config, section)
    start, target = ctx.inputs.adapters["start"], ctx.inputs.adapters["target"]
    anchor = ctx.inputs.adapters.get("anchor")
    carried = {name: made.path / f"{name}.pt" for name, made in ctx.inputs.files.items()}
    training: FineTuningSection = getattr(ctx.config, section)
    most_steps = training.epochs * len(main.examples)  # a batch has at least one of the stage's own rows
    chat = general_chat(ctx.config.anchor, training.batch_rows, most_steps, ctx.roles.seed("chat"))
    rehearsed = training.rehearse_share if isinstance(training, TrainingSection) else 0.0
    mixed = {
        "mix": (mix, other if other and mix else Source("transitions", [])),
        "chat_share": (ctx.config.anchor.chat_share, Source("chat_file", chat)),
        "rehearse_share": (rehearsed, Source("demonstrations", rehearsed_examples(ctx) if rehearsed else [])),
    }

    def on_step(record: StepRecord, total: int) -> None:
        if record.step == 0:
            ctx.progress.begin(total, "steps")
        ctx.progress.advance(loss=record.loss)
        ctx.log.info("step %d/%d loss %.4f", record.step + 1, total, record.loss)

    job = TrainingJob(
        model=ctx.config.model,
        section=training,
        rows=Rows(
            main.examples, [MixedRows(name, share, rows.examples) for name, (share, rows) in mixed.items()]
        ),
        seed=ctx.roles.seed(),
        out=workspace.folder,
        start=Start(
            parameters=start.path if start else None,
            target=target.path if target else None,
            anchor=anchor.path if anchor else None,
            **carried,
        ),
        tau=ctx.config.target.tau if moves_target else None,
        lr_scale=training.lr_scale(ctx.iteration),
        anchor=ctx.config.anchor,
        trainer=ctx.config.trainer,
        checkpoint=workspace.checkpoint,
        scores=scores,
        may_be_none=may_be_none,
        policy_gradient=PolicyGradient(
            ctx.config.policy_gradient,
            ctx.config.roles.policy.max_tokens * ctx.config.rollout.max_steps,
        ),
        value_loss=_value_loss(ctx, section),
    )

    def run() -> TrainingResult:
        if job.trainer.world > 1:
            return train_in_processes(job, on_step)
        with lean_transformers():
            from tasks.training.trainer import train

        return train(job, on_step)

    try:
        result = await asyncio.to_thread(run)
    except TrainingError as error:
        raise StageFailed(str(error)) from error
    ctx.trained_tokens += sum(step.tokens for step in result.steps)
    if result.micro_batch_rows < training.micro_batch_rows:
        ctx.log.warning(
            "memory did not hold micro-batches of %d rows, so they had %d; set %s.micro_batch_rows to that",
            training.micro_batch_rows,
            result.micro_batch_rows,
            section,
        )
    rows = [
        TrainingRow(
            run=ctx.config.run,
            iteration=ctx.iteration,
            status="too_long" if e.row_id in result.too_long else "ok",
            error=result.too_long.get(e.row_id),
            stage=ctx.stage,
            role=e.role,
            source_table=source.table,
            source_id=e.row_id,
            adapter_version=version,
            weight=e.weight,
            prompt_tokens=result.prompt_tokens.get(e.row_id, 0),
            label_tokens=result.label_tokens.get(e.row_id, 0),
            uses=result.uses.get(e.row_id, 0),
            dropped_turns=e.dropped.turns,
            dropped_chars=e.dropped.chars,
        )
        for source in (main, *(source for _, source in mixed.values()))
        for e in source.examples
        if result.uses.get(e.row_id) or e.row_id in result.too_long
    ]
    steps = [
        TrainingStep(
            run=ctx.config.run,
            iteration=ctx.iteration,
            stage=ctx.stage,
            adapter_version=version,
            **{name: getattr(s, name) for name in StepRecord.__dataclass_fields__},
        )
        for s in result.steps
    ]
    if not steps:
        return Trained(result, rows, steps, {"steps": 0.0})
    metrics = {"steps": float(len(steps)), "first_loss": steps[0].loss, "last_loss": steps[-1].loss}
    optional = {
        "last_chat_loss": steps[-1].chat_loss,
        "last_demonstration_loss": steps[-1].demonstration_loss,
        "last_anchor_kl": steps[-1].anchor_kl,
        "target_moved": result.target_moved,
        "micro_batch_rows": float(result.micro_batch_rows),
        "last_value_loss": steps[-1].value_loss,
        "clipped_share": _mean_of(steps, "clipped_share"),
        "engine_gap_mean": _mean_of(steps, "engine_gap_mean"),
        "engine_gap_max": max(
            (step.engine_gap_max for step in steps if step.engine_gap_max is not None), default=None
        ),
        "engine_k3": _mean_of(steps, "engine_k3"),
    }
    metrics |= {name: value for name, value in optional.items() if value is not None}
    return Trained(result, rows, steps, metrics)


def _value_loss(ctx: StageContext, section: Literal["critic", "policy", "warm_start"]) -> ValueLoss | None:
    """The loss of the value head that stands on the parameters in training, where there is one."""
    if ctx.algorithm.has_values and section == "policy":
        settings = ctx.config.policy_gradient
        return ValueLoss(settings.value_coefficient, settings.value_clip)
    on_critic = section == "critic" or (section == "policy" and ctx.config.parameters == "shared")
    if ctx.algorithm.has_action_values and on_critic:
        return ValueLoss(ctx.config.soft_q.value_coefficient)
    return None


def _mean_of(steps: Sequence[TrainingStep], name: str) -> float | None:
    """The mean of a measure over the steps that have it."""
    values = [value for step in steps if (value := getattr(step, name)) is not None]
    return fmean(values) if values else None


def nothing_to_train(what: str, rows: Sequence[Row], remedy: str = "") -> StageFailed:
    """The error of a stage without a valid row: the number of rows by status, and the first row's error.

    Args:
        what: what the rows are.
        rows: all that the stage was given.
        remedy: ends the message.
    """
    counts = Counter(row.status for row in rows)
    first = next((row.error for row in rows if row.error), "no reason given")
    said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    end = f"; {remedy}" if remedy else ""
    return StageFailed(f"nothing to train on: of {len(rows)} {what} {said}; the first: {first}{end}")


def training_steps(section: FineTuningSection, rows: int, mix: float) -> int:
    """Optimizer steps over `rows` own rows, with a share `mix` of each batch left to other rows."""
    own = max(1, section.batch_rows - round(section.batch_rows * mix))
    return -(-rows // own) * section.epochs


def label_bound(config: Config, section: FineTuningSection, steps: int) -> int:
    """Label tokens of so many steps at most, rows of other roles among them."""
    roles = config.roles
    longest = max(role.max_tokens for role in (roles.bootstrap, roles.refine, roles.policy))
    return steps * section.batch_rows * longest
