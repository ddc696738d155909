"""The training loop of both stages: critic SFT and policy distillation differ in rows, mix and tau only."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from peft.helpers import disable_input_dtype_casting
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from schemas.config import ModelSection, TrainingSection
from tasks.engines.chat import ChatTokenizer, load_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.training.adapters import WEIGHTS, adapter_tensors, fresh_adapter, load_adapter, save_adapter
from tasks.training.data import Encoded, Example, TooLong, encode, plan_batches
from tasks.training.ema import TargetParameters
from tasks.training.loss import label_logprobs, row_coefficients
from tasks.training.model import load_base
from tasks.training.optimizer import Optimizer
from tasks.training.records import NothingToTrain, StepRecord, TrainingError, TrainingResult


def train(
    *,
    model: ModelSection,
    section: TrainingSection,
    start: Path | None,
    target: Path | None,
    optimizer: Path | None,
    tau: float | None,
    mix: float,
    main: Sequence[Example],
    other: Sequence[Example],
    seed: int,
    out: Path,
    on_step: Callable[[StepRecord, int], None],
) -> TrainingResult:
    """Fine-tune one adapter on completions and leave it, with target and optimizer state, in `out`.

    Scores are taken first, with the parameters the stage starts from. The same inputs and seed give the same
    adapter bytes on the same machine (on CUDA up to the kernels' own order of summation).

    Args:
        model: base model, LoRA hyperparameters, context length.
        section: batches, rate, epochs.
        start: adapter to go on from; None makes a fresh one from the seed.
        target: target parameters so far; None: they are the adapter started from.
        optimizer: state to carry; None, or `optimizer: reset` in the section, starts afresh.
        tau: share the target takes over a step; None leaves the target alone and writes none.
        mix: share of rows of the other role in a batch.
        main: the stage's own rows, each trained on once an epoch.
        other: rows of the other role to draw on.
        seed: of the fresh adapter and the order of rows.
        out: folder; `adapter/`, `target/` (with tau) and `optimizer.pt` are written at the end, or nothing.
        on_step: told of each step and of how many there will be.

    Raises:
        NothingToTrain: no row of `main` is left; no model has been loaded.
        TrainingError: a loss or gradient is not finite, memory does not suffice, or an input does not fit.
    """
    own, too_long = _encode(main, model)
    if not own:
        reason = next(iter(too_long.values()), "the stage was given no valid row")
        given = f"{len(main)} rows given, {len(too_long)} too long"
        raise NothingToTrain(f"nothing to train on: {given} ({reason})")
    others, others_too_long = _encode(other, model)
    rows = own + others
    if len({row.row_id for row in rows}) < len(rows):
        raise TrainingError("two training rows have the same row_id; uses and scores could not be told apart")
    numbers_of_own, numbers_of_others = range(len(own)), range(len(own), len(rows))
    plan = plan_batches(numbers_of_own, numbers_of_others, section.batch_rows, mix, section.epochs, seed)

    base = load_base(model)
    tuned = fresh_adapter(base, model, seed) if start is None else load_adapter(base, start, model)
    parameters = {name: value for name, value in tuned.named_parameters() if value.requires_grad}
    carried = optimizer if section.optimizer == "carry" else None
    adamw = Optimizer(parameters, section, carried)
    live = adapter_tensors(tuned)
    average = None if tau is None else TargetParameters(_target_tensors(live, target), tau)
    steps: list[StepRecord] = []
    # peft casts each adapter's input to the adapter's float32, and autocast would only cast it back.
    with disable_input_dtype_casting(tuned):
        scores = _scores(base, own, section.micro_batch_rows)
        for number, numbers in enumerate(plan):
            steps.append(_step(base, adamw, [rows[i] for i in numbers], number, section.micro_batch_rows))
            if average is not None:
                average.update(live)
            on_step(steps[-1], len(plan))

    save_adapter(tuned, live, out / "adapter", model.name)
    if average is not None:
        save_adapter(tuned, average.tensors, out / "target", model.name)
    adamw.save(out / "optimizer.pt")
    uses = Counter(rows[i].row_id for numbers in plan for i in numbers)
    return TrainingResult(
        steps=steps,
        scores=scores,
        uses={row.row_id: uses[row.row_id] for row in rows},
        prompt_tokens={row.row_id: len(row.prompt_ids) for row in rows},
        label_tokens={row.row_id: len(row.label_ids) for row in rows},
        too_long=too_long | others_too_long,
        target_moved=None if average is None else average.moved,
    )


def _encode(examples: Sequence[Example], model: ModelSection) -> tuple[list[Encoded], dict[str, str]]:
    """Rows that fit, and why the others do not."""
    if not examples:
        return [], {}
    chat: ChatTokenizer = load_chat_tokenizer(resolve_model(model), model.revision)
    rows, too_long = [], {}
    for example in examples:
        try:
            rows.append(encode(example, chat, model.context_length))
        except TooLong as reason:
            too_long[example.row_id] = str(reason)
    return rows, too_long


def _target_tensors(live: dict[str, torch.Tensor], target: Path | None) -> dict[str, torch.Tensor]:
    """Where the target parameters start, checked against the adapter that they follow."""
    if target is None:
        return live
    try:
        saved = load_file(target / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{target}: {WEIGHTS} can't be read ({error}); run the stage that wrote this target again"
        ) from error
    for name in sorted(saved.keys() | live.keys()):
        shapes = [tuple(side[name].shape) if name in side else None for side in (saved, live)]
        if shapes[0] != shapes[1]:
            raise TrainingError(
                f"{target}: target parameters do not match the adapter: {name} is {shapes[0]} in the target, "
                f"{shapes[1]} in the adapter; both must come from the same run and model.lora"
            )
    return {name: saved[name].to(live[name].device) for name in live}


def _micro_batches(rows: Sequence[Encoded], size: int) -> Iterator[list[Encoded]]:
    """Rows of one role and like length together: their prompts begin alike, and little is padding."""
    ordered = sorted(rows, key=lambda row: (row.role, row.tokens))
    for begin in range(0, len(ordered), size):
        yield ordered[begin : begin + size]


@torch.no_grad()
def _scores(base: PreTrainedModel, rows: Sequence[Encoded], size: int) -> dict[str, tuple[float, ...]]:
    """log p_theta of each token of the scored segments."""
    scores = {}
    for some in _micro_batches([row for row in rows if row.scored_segment is not None], size):
        for row, logprobs in zip(some, label_logprobs(base, some), strict=True):
            begin, end = row.segment_spans[row.scored_segment or 0]
            scores[row.row_id] = tuple(logprobs[begin:end].tolist())
    return scores


def _step(
    base: PreTrainedModel, adamw: Optimizer, batch: list[Encoded], number: int, size: int
) -> StepRecord:
    """One optimizer step over a batch, micro-batch by micro-batch."""
    coefficients = dict(zip((row.row_id for row in batch), row_coefficients(batch), strict=True))
    losses = dict.fromkeys({row.role for row in batch}, 0.0)
    for some in _micro_batches(batch, size):
        try:
            parts = [
                -coefficients[row.row_id] * logprobs.mean()
                for row, logprobs in zip(some, label_logprobs(base, some), strict=True)
            ]
            weighted = torch.stack(parts)
            weighted.sum().backward()
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"step {number}: the device's memory does not hold {len(some)} rows of {some[-1].tokens} "
                "tokens; lower micro_batch_rows of this training section"
            ) from error
        for row, part in zip(some, weighted.tolist(), strict=True):
            losses[row.role] += part
    loss, rate, norm = sum(losses.values()), adamw.learning_rate, adamw.clip()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(
            f"step {number}: loss {loss}, gradient norm {norm}; lower learning_rate or clip_norm of this "
            "training section, or set its `optimizer: reset`"
        )
    adamw.step()
    return StepRecord(
        step=number,
        loss=loss,
        critic_loss=losses.get("critic"),
        policy_loss=losses.get("policy"),
        learning_rate=rate,
        grad_norm=norm,
        rows=len(batch),
        label_tokens=sum(len(row.label_ids) for row in batch),
        tokens=sum(row.tokens for row in batch),
    )
