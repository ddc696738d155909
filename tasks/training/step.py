"""One optimizer step: the gradients of a batch's micro-batches add up to the batch's."""

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import get_args

import torch

from tasks.datasets.example import RowRole
from tasks.training.anchor import Anchor, anchored_losses
from tasks.training.cpu.parallel_micro_batches import ParallelMicroBatches
from tasks.training.data import Encoded
from tasks.training.loss import row_coefficients, token_losses
from tasks.training.optimizer import Optimizer
from tasks.training.processes import ALONE, Processes
from tasks.training.records import StepRecord, TrainingError
from tasks.training.trainable import Trainable

ROLES = get_args(RowRole)


def micro_batches(rows: Sequence[Encoded], size: int) -> list[list[Encoded]]:
    """Rows of one role together, since their prompts begin alike, and about as many tokens in each micro-batch, since
    those who share them, lanes or processes, wait for the last. The longest come first."""
    parts: list[list[Encoded]] = [[] for _ in range(0, len(rows), size)]
    tokens, begin = [0] * len(parts), 0
    for _, same in groupby(sorted(rows, key=lambda row: row.role), key=lambda row: row.role):
        of_role = sorted(same, key=lambda row: row.tokens, reverse=True)
        room = Counter(place // size for place in range(begin, begin + len(of_role)))
        least = [(tokens[number], number) for number in room]
        heapify(least)
        for row in of_role:
            _, number = heappop(least)
            parts[number].append(row)
            tokens[number] += row.tokens
            room[number] -= 1
            if room[number]:
                heappush(least, (tokens[number], number))
        begin += len(of_role)
    return [parts[number] for number in sorted(range(len(parts)), key=tokens.__getitem__, reverse=True)]


def take_step(
    trainable: Trainable,
    adamw: Optimizer,
    batch: list[Encoded],
    number: int,
    size: int,
    anchor: Anchor | None = None,
    processes: Processes = ALONE,
) -> StepRecord:
    """Gradients, clipping, an update.

    Args:
        trainable: the model in training.
        adamw: its optimizer.
        batch: the step's rows.
        number: of the step, for its record and for errors.
        size: rows computed at once.
        anchor: what holds the model to its base; None: nothing.
        processes: among whom the rows are dealt out; all of them take this very step.

    Raises:
        TrainingError: memory does not suffice, or the loss or a gradient is not finite.
    """
    coefficients = {row.row_id: share for row, share in zip(batch, row_coefficients(batch), strict=True)}
    anchored = anchor.tokens(batch) if anchor else 0
    # An anchor's base is this very model with its adapter off: nothing else may be computed meanwhile.
    lanes = ParallelMicroBatches() if anchor else trainable.lanes
    parameters = tuple(trainable.parameters.values())

    def compute(part: tuple[list[Encoded], bool]) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        """The roles' losses and the KL of a micro-batch, and its gradients where they are not added up already."""
        some, counts = part
        # A row's NLL is the mean over its tokens: each has the row's coefficient over their number.
        lengths = torch.tensor([len(row.label_ids) for row in some])
        shares = torch.tensor([coefficients[row.row_id] for row in some]) / lengths
        role = torch.tensor([[row.role == role for row in some] for role in ROLES])
        weights = (role * shares * counts).repeat_interleave(lengths, dim=1)  # [role, label token]
        device = trainable.model.device
        kl = torch.zeros((), device=device)
        gradients: Sequence[torch.Tensor | None] = ()
        try:
            # The processes of a sharded model all ask the base, or none does.
            if anchor and (trainable.sharded or anchor.tokens(some)):
                per_token, divergences = anchored_losses(trainable.model, some, anchor.base, trainable.dtype)
                held = torch.tensor([row.row_id in anchor.rows for row in some]).repeat_interleave(lengths)
                kl = (held * counts / anchored).to(device) @ divergences
            else:
                per_token = token_losses(trainable.model, some, trainable.dtype)
            losses = weights.to(device) @ per_token
            loss = losses.sum() + anchor.coefficient * kl if anchor else losses.sum()
            if lanes.count == 1:
                loss.backward()
            else:
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"step {number}: the device's memory does not hold {len(some)} rows with "
                f"{sum(row.tokens for row in some)} tokens; lower micro_batch_rows of this training section"
            ) from error
        return torch.cat([losses.detach(), kl.detach()[None]]), gradients

    parts = processes.share(micro_batches(batch, size))
    totals = torch.zeros(len(ROLES) + 1, device=trainable.model.device)
    for part_totals, gradients in lanes.map(
        compute, [part for part in parts if part[1] or trainable.sharded]
    ):
        totals += part_totals
        for parameter, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    processes.sum_gradients(trainable.parameters.values())
    *by_role, kl_mean = processes.sum(totals).tolist()
    losses_by_role = dict(zip(ROLES, by_role, strict=True))
    loss = sum(by_role) + (anchor.coefficient * kl_mean if anchor else 0.0)
    rate, norm = adamw.learning_rate, adamw.clip()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(
            f"step {number}: loss {loss}, gradient norm {norm}; lower learning_rate or clip_norm of this "
            "training section, or set its `optimizer: reset`"
        )
    adamw.step()
    present = {row.role for row in batch}
    return StepRecord(
        step=number,
        loss=loss,
        critic_loss=losses_by_role["critic"] if "critic" in present else None,
        policy_loss=losses_by_role["policy"] if "policy" in present else None,
        chat_loss=losses_by_role["chat"] if "chat" in present else None,
        anchor_kl=kl_mean if anchor else None,
        learning_rate=rate,
        grad_norm=norm,
        rows=len(batch),
        label_tokens=sum(len(row.label_ids) for row in batch),
        tokens=sum(row.tokens for row in batch),
    )
