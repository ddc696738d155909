"""The training loop of all stages that train: they differ in rows, mix and tau only."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from peft.helpers import disable_input_dtype_casting

from schemas.config import ModelSection
from tasks.chat.tokenizers import shared_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.models import resolve_model
from tasks.training.anchor import make_anchor
from tasks.training.batches import MixedIn, micro_batches, plan_batches
from tasks.training.checkpoint import Checkpoint
from tasks.training.clipped_ratio import make_clipped_ratio
from tasks.training.data import Encoded, TooLong, encode
from tasks.training.divergence import finite, refuse_divergence
from tasks.training.ema import TargetParameters
from tasks.training.job import OnStep, TrainingJob
from tasks.training.loss import label_logprobs
from tasks.training.memory import halving, within_memory
from tasks.training.optimizer import Optimizer
from tasks.training.processes import ALONE, Processes
from tasks.training.records import NothingToTrain, TrainingError, TrainingResult
from tasks.training.step import take_step
from tasks.training.trainable import Trainable, make_trainable, target_tensors
from tasks.training.value_head import (
    FILE,
    TARGET_FILE,
    head_tensors,
    save_value_head,
    target_head_tensors,
    with_value_head,
)


def train(job: TrainingJob, on_step: OnStep, processes: Processes = ALONE) -> TrainingResult:
    """Fine-tune an adapter, or the whole model, on completions; writes it with target and optimizer state.

    Scores are taken first (where `job.scores`), with the parameters the stage starts from. Those of sampled turns are
    the old log-probabilities of their loss. The same job gives the same
    bytes on the same machine (on CUDA up to the kernels' own order of summation), also when it was killed and resumed
    from its checkpoint.

    Args:
        job: what to train, on what.
        on_step: called after each step.
        processes: this process among those that train together. All are given the same job, and the first writes.

    Raises:
        NothingToTrain: no row of the stage's own is left; no model has been loaded.
        TrainingError: a loss, gradient or parameter is not finite, the loss diverges, memory does not hold one row, or
            an input does not fit.
    """
    section, tau = job.section, job.tau
    own, too_long = encode_all(job.rows.main, job.model)
    if not own and not (job.may_be_none and not job.rows.main):
        reason = next(iter(too_long.values()), "the stage was given no valid row")
        given = f"{len(job.rows.main)} rows given, {len(too_long)} too long"
        raise NothingToTrain(f"nothing to train on: {given} ({reason})")
    rows, mixed = list(own), []
    for origin in job.rows.mixed:
        encoded, also_too_long = encode_all(origin.examples, job.model)
        mixed.append(MixedIn(range(len(rows), len(rows) + len(encoded)), origin.share, origin.field))
        rows += encoded
        too_long |= also_too_long
    if len({row.row_id for row in rows}) < len(rows):
        raise TrainingError("two training rows have the same row_id; uses and scores could not be told apart")
    plan = plan_batches(range(len(own)), section.batch_rows, section.epochs, job.seed, *mixed)

    size = section.micro_batch_rows
    passes = math.ceil(section.batch_rows / size / processes.size)
    trainable = make_trainable(job.model, job.start.parameters, job.seed, job.trainer, processes, passes)
    vocabulary = int(trainable.model.get_output_embeddings().weight.shape[0])
    if job.value_loss is not None:
        trainable = with_value_head(trainable, job.start.value_head)
    anchored = frozenset(row.row_id for row in own)
    anchor = make_anchor(job.anchor.kl, anchored, trainable, job.model, job.start.anchor)
    adamw = Optimizer(trainable.parameters, section, job.start.optimizer, job.lr_scale)
    average = None if tau is None else TargetParameters(_target(job, trainable), tau)
    state = Checkpoint(job.checkpoint, job.trainer.checkpoint_steps, trainable, adamw, average)
    # peft casts each adapter's input to the adapter's float32, and autocast would only cast it back.
    with disable_input_dtype_casting(trainable.model):
        if not state.restore():
            scored = own if job.scores else []
            state.scores, size = halving(size, lambda size: _scores(trainable, scored, size))
        clipped_ratio = make_clipped_ratio(job.policy_gradient, own, state.scores)
        for record in state.steps:
            on_step(record, len(plan))
        for number in range(len(state.steps), len(plan)):
            batch = [rows[i] for i in plan[number]]
            step = partial(
                take_step,
                trainable,
                adamw,
                batch,
                number,
                anchor=anchor,
                clipped_ratio=clipped_ratio,
                valuing=job.value_loss,
            )
            record, size = halving(size, step)
            state.steps.append(record)
            refuse_divergence(state.steps, vocabulary)
            if average is not None:
                average.update({**trainable.tensors, **head_tensors(trainable.parameters)})
            on_step(state.steps[-1], len(plan))
            state.save_if_due(len(plan))
    _write(job, trainable, adamw, average)
    uses = Counter(rows[i].row_id for batch in plan for i in batch)
    return TrainingResult(
        steps=state.steps,
        scores=state.scores,
        uses={row.row_id: uses[row.row_id] for row in rows},
        prompt_tokens={row.row_id: len(row.prompt_ids) for row in rows},
        label_tokens={row.row_id: len(row.label_ids) * row.has_label for row in rows},
        too_long=too_long,
        target_moved=None if average is None else average.moved,
        micro_batch_rows=size,
    )


def encode_all(examples: Sequence[Example], model: ModelSection) -> tuple[list[Encoded], dict[str, str]]:
    """Rows that fit, and why the others do not."""
    if not examples:
        return [], {}
    chat = shared_chat_tokenizer(resolve_model(model), model.revision)
    rows, too_long = [], {}
    for example in examples:
        try:
            rows.append(encode(example, chat, model.context_length))
        except TooLong as reason:
            too_long[example.row_id] = str(reason)
    return rows, too_long


@torch.no_grad()
def _scores(trainable: Trainable, rows: Sequence[Encoded], size: int) -> dict[str, tuple[float, ...]]:
    """log p_theta of each token of the scored segments."""

    def of_rows(some: list[Encoded]) -> dict[str, tuple[float, ...]]:
        spans = [row.segment_spans[row.scored_segment or 0] for row in some]
        found = label_logprobs(trainable.model, some, trainable.dtype)
        return {
            row.row_id: tuple(logprobs[begin:end].tolist())
            for row, logprobs, (begin, end) in zip(some, found, spans, strict=True)
        }

    batches = micro_batches([row for row in rows if row.scored_segment is not None], size)
    shared = [some for some, _ in trainable.processes.share(batches)]
    with within_memory(trainable, "scoring", size):
        parts = list(trainable.parallel.map(of_rows, shared))
    return trainable.processes.gather({row_id: score for part in parts for row_id, score in part.items()})


def _target(job: TrainingJob, trainable: Trainable) -> dict[str, torch.Tensor]:
    """The target parameters to start from, with the target's value head where there is one."""
    head = target_head_tensors(trainable, job.start.target_value_head)
    return {**target_tensors(trainable, job.model, job.start.target), **head}


def _write(
    job: TrainingJob, trainable: Trainable, adamw: Optimizer, average: TargetParameters | None
) -> None:
    """Write what the stage leaves. Every process gathers its shards; the first writes, and nothing where a parameter is
    not finite."""
    averaged = {} if average is None else average.tensors
    heads = {FILE: head_tensors(trainable.parameters), TARGET_FILE: head_tensors(averaged)}
    tensors: dict[str, Mapping[str, torch.Tensor]] = {"adapter": trainable.tensors}
    if average is not None:
        tensors["target"] = {name: value for name, value in averaged.items() if name in trainable.tensors}
    contents = {name: finite(content, "the last step") for name, content in {**tensors, **heads}.items()}
    if trainable.processes.first:
        for folder in tensors:
            trainable.write(contents[folder], job.out / folder)
        for file in heads:
            if contents[file]:
                save_value_head(contents[file], job.out / file)
    moments = adamw.state()
    if trainable.processes.first:
        torch.save(moments, job.out / "optimizer.pt")
