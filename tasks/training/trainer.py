"""The training loop of all stages that train: they differ in rows, mix and tau only."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from peft.helpers import disable_input_dtype_casting

from schemas.config import AnchorSection, FineTuningSection, ModelSection, TrainerSection
from tasks.chat.tokenizers import ChatTokenizer, shared_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.models import resolve_model
from tasks.training.anchor import make_anchor
from tasks.training.checkpoint import Checkpoint
from tasks.training.data import Encoded, TooLong, encode, plan_batches
from tasks.training.ema import TargetParameters
from tasks.training.loss import label_logprobs
from tasks.training.optimizer import Optimizer
from tasks.training.processes import ALONE, Processes, whole
from tasks.training.records import NothingToTrain, StepRecord, TrainingError, TrainingResult
from tasks.training.step import micro_batches, take_step
from tasks.training.trainable import Trainable, make_trainable, target_tensors


def train(
    *,
    model: ModelSection,
    section: FineTuningSection,
    start: Path | None,
    target: Path | None,
    optimizer: Path | None,
    tau: float | None,
    mix: float,
    main: Sequence[Example],
    other: Sequence[Example],
    seed: int,
    out: Path,
    lr_scale: float = 1.0,
    chat: Sequence[Example] = (),
    anchor: AnchorSection | None = None,
    trainer: TrainerSection | None = None,
    checkpoint: Path | None = None,
    processes: Processes = ALONE,
    on_step: Callable[[StepRecord, int], None],
) -> TrainingResult:
    """Fine-tune an adapter, or the whole model, on completions; leaves it with target and optimizer state in `out`.

    Scores are taken first, with the parameters the stage starts from. The same inputs and seed give the same
    bytes on the same machine (on CUDA up to the kernels' own order of summation), also when it was killed in between
    and goes on from its checkpoint.

    Args:
        model: the model, what of it trains, context length.
        section: batches, rate, epochs.
        start: what to go on from, of the form that `model.train` says; None starts from the model itself.
        target: target parameters so far; None: they are the parameters started from.
        optimizer: state to carry; None starts afresh.
        tau: share the target takes over a step; None leaves the target alone and writes none.
        mix: share of rows of the other role in a batch.
        main: the stage's own rows, each trained on once an epoch.
        other: rows of the other role to draw on.
        seed: of a fresh adapter and the order of rows.
        out: folder; `adapter/`, `target/` (with tau) and `optimizer.pt` are written at the end, or nothing.
        lr_scale: share of the section's learning rate in this iteration (its `lr_scale`).
        chat: rows of general chat to draw on.
        anchor: their share of a batch, and the coefficient of KL(p_theta || p_base); None: neither.
        trainer: how it is computed.
        checkpoint: file to go on from, where it is there, and to keep up to date until the end.
        processes: this process among those that train together; all are given the same arguments, and the first
            writes.
        on_step: told of each step, those before a checkpoint included, and of how many there will be.

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
    chats, chats_too_long = _encode(chat, model)
    rows = own + others + chats
    if len({row.row_id for row in rows}) < len(rows):
        raise TrainingError("two training rows have the same row_id; uses and scores could not be told apart")
    anchor = anchor or AnchorSection()
    ends = (len(own), len(own) + len(others), len(rows))
    plan = plan_batches(
        range(ends[0]), range(*ends[:2]), section.batch_rows, mix, section.epochs, seed,
        range(*ends[1:]), anchor.chat_share,
    )  # fmt: skip

    trainer = trainer or TrainerSection()
    size = section.micro_batch_rows
    passes = math.ceil(section.batch_rows / size / processes.size)
    trainable = make_trainable(model, start, seed, trainer, processes, passes)
    held = make_anchor(anchor.kl, frozenset(row.row_id for row in own), trainable, model)
    adamw = Optimizer(trainable.parameters, section, optimizer, lr_scale)
    average = None if tau is None else TargetParameters(target_tensors(trainable, model, target), tau)
    state = Checkpoint(checkpoint, trainer.checkpoint_steps, trainable, adamw, average, processes)
    # peft casts each adapter's input to the adapter's float32, and autocast would only cast it back.
    with disable_input_dtype_casting(trainable.model):
        if not state.restore():
            state.scores = _scores(trainable, own, size, processes)
        for record in state.steps:
            on_step(record, len(plan))
        for number in range(len(state.steps), len(plan)):
            batch = [rows[i] for i in plan[number]]
            state.steps.append(take_step(trainable, adamw, batch, number, size, held, processes))
            if average is not None:
                average.update(trainable.tensors)
            on_step(state.steps[-1], len(plan))
            state.save_if_due(len(plan))

    left = {"adapter": trainable.tensors} | ({} if average is None else {"target": average.tensors})
    for folder, tensors in left.items():
        content = {name: whole(tensor) for name, tensor in tensors.items()}
        if processes.first:
            trainable.write(content, out / folder)
    moments = adamw.state()
    if processes.first:
        torch.save(moments, out / "optimizer.pt")
    uses = Counter(rows[i].row_id for numbers in plan for i in numbers)
    return TrainingResult(
        steps=state.steps,
        scores=state.scores,
        uses={row.row_id: uses[row.row_id] for row in rows},
        prompt_tokens={row.row_id: len(row.prompt_ids) for row in rows},
        label_tokens={row.row_id: len(row.label_ids) for row in rows},
        too_long=too_long | others_too_long | chats_too_long,
        target_moved=None if average is None else average.moved,
    )


def _encode(examples: Sequence[Example], model: ModelSection) -> tuple[list[Encoded], dict[str, str]]:
    """Rows that fit, and why the others do not."""
    if not examples:
        return [], {}
    chat: ChatTokenizer = shared_chat_tokenizer(resolve_model(model), model.revision)
    rows, too_long = [], {}
    for example in examples:
        try:
            rows.append(encode(example, chat, model.context_length))
        except TooLong as reason:
            too_long[example.row_id] = str(reason)
    return rows, too_long


@torch.no_grad()
def _scores(
    trainable: Trainable, rows: Sequence[Encoded], size: int, processes: Processes
) -> dict[str, tuple[float, ...]]:
    """log p_theta of each token of the scored segments."""

    def of_rows(some: list[Encoded]) -> dict[str, tuple[float, ...]]:
        spans = [row.segment_spans[row.scored_segment or 0] for row in some]
        found = label_logprobs(trainable.model, some, trainable.dtype)
        return {
            row.row_id: tuple(logprobs[begin:end].tolist())
            for row, logprobs, (begin, end) in zip(some, found, spans, strict=True)
        }

    batches = micro_batches([row for row in rows if row.scored_segment is not None], size)
    scored = trainable.lanes.map(of_rows, [some for some, _ in processes.share(batches)])
    return processes.gather({row_id: score for part in scored for row_id, score in part.items()})
