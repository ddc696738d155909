"""One optimizer step: the gradients of a batch's micro-batches add up to the batch's."""

import math
from collections.abc import Sequence
from typing import get_args

import torch

from tasks.datasets.example import RowRole
from tasks.training.anchor import Anchor, anchored_losses
from tasks.training.batches import micro_batches
from tasks.training.clipped_ratio import MEASURES, ClippedRatio
from tasks.training.data import Encoded
from tasks.training.divergence import REMEDY
from tasks.training.fused.parallel_micro_batches import ParallelMicroBatches
from tasks.training.job import ValueLoss
from tasks.training.loss import row_coefficients, token_losses
from tasks.training.memory import within_memory
from tasks.training.optimizer import Optimizer
from tasks.training.records import StepRecord, TrainingDiverged
from tasks.training.trainable import Trainable
from tasks.training.value_head import value_loss, value_shares

ROLES = get_args(RowRole)


def take_step(
    trainable: Trainable,
    adamw: Optimizer,
    batch: list[Encoded],
    number: int,
    size: int,
    anchor: Anchor | None = None,
    clipped_ratio: ClippedRatio | None = None,
    valuing: ValueLoss | None = None,
) -> StepRecord:
    """Compute the gradients of a batch, clip them, update the parameters.

    Args:
        trainable: the model in training. Its processes share the rows, and all of them take this step.
        adamw: its optimizer.
        batch: the step's rows.
        number: of the step, for its record and for errors.
        size: rows per micro-batch.
        anchor: the KL to the model that training began from; None: not computed.
        clipped_ratio: the loss of sampled turns; None: there are none.
        valuing: the loss of the value head; None: there is none.

    Raises:
        MicroBatchTooLarge: memory does not hold a micro-batch; nothing has changed.
        TrainingDiverged: the loss or a gradient is not finite.
    """
    coefficients = {row.row_id: share for row, share in zip(batch, row_coefficients(batch), strict=True)}
    coefficients |= clipped_ratio.coefficients(batch) if clipped_ratio else {}
    valued = value_shares(batch) if valuing and trainable.value_head else {}
    value_coefficient = valuing.coefficient if valuing else 0.0
    anchored = anchor.tokens(batch) if anchor else 0
    # An anchor's base is this very model, its adapter off or changed: nothing else may be computed meanwhile.
    parallel = ParallelMicroBatches() if anchor else trainable.parallel
    parameters = tuple(trainable.parameters.values())
    device = trainable.model.device

    def compute(part: tuple[list[Encoded], bool]) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        """Losses by role, KL, value loss and MEASURES of a micro-batch, and its gradients unless they are accumulated
        already."""
        some, counts = part
        # A row's loss is the mean over its tokens: each has the row's coefficient over their number.
        lengths = torch.tensor([len(row.label_ids) for row in some])
        shares = torch.tensor([coefficients[row.row_id] for row in some]) / lengths
        role = torch.tensor([[row.role == role for row in some] for role in ROLES])
        weights = (role * shares * counts).repeat_interleave(lengths, dim=1)  # [role, label token]
        kl, of_values = torch.zeros((), device=device), torch.zeros((), device=device)
        measured = torch.zeros(len(MEASURES), device=device)
        gradients: Sequence[torch.Tensor | None] = ()
        # The processes of a sharded model all run the base model, or none does.
        if anchor and (trainable.sharded or anchor.tokens(some)):
            per_token, divergences, states = anchored_losses(
                trainable.model, some, anchor.base, trainable.dtype
            )
            held = torch.tensor([row.row_id in anchor.rows for row in some]).repeat_interleave(lengths)
            kl = (held * counts / anchored).to(device) @ divergences
        else:
            per_token, states = token_losses(trainable.model, some, trainable.dtype)
        if clipped_ratio:
            per_token, measured = clipped_ratio.losses(per_token, some)
        losses = weights.to(device) @ per_token
        loss = losses.sum() + anchor.coefficient * kl if anchor else losses.sum()
        if valuing and valued and trainable.value_head is not None:
            of_values = counts * value_loss(trainable.value_head, states, some, valued, valuing.clip)
            loss = loss + value_coefficient * of_values
        if parallel.count == 1:
            loss.backward()
        else:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        further = torch.stack([kl, of_values]).detach()
        return torch.cat([losses.detach(), further, counts * measured]), gradients

    processes = trainable.processes
    parts = [part for part in processes.share(micro_batches(batch, size)) if part[1] or trainable.sharded]
    totals = torch.zeros(len(ROLES) + 2 + len(MEASURES), device=device)
    with within_memory(trainable, f"step {number}", size):
        for part_totals, gradients in parallel.map(compute, parts):
            totals += part_totals
            for parameter, gradient in zip(parameters, gradients, strict=False):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    processes.sum_gradients(parameters)
    *by_role, kl_mean, value_mean, clipped, old_kl = processes.sum(totals).tolist()
    losses_by_role = dict(zip(ROLES, by_role, strict=True))
    loss = sum(by_role) + (anchor.coefficient * kl_mean if anchor else 0.0) + value_coefficient * value_mean
    rate, norm = adamw.learning_rate, adamw.clip()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingDiverged(f"step {number}: loss {loss}, gradient norm {norm}; {REMEDY}")
    adamw.step()
    present = {row.role for row in batch if row.has_label}
    sampled = sum(len(row.label_ids) for row in batch if row.sampled is not None)
    gap = clipped_ratio.engine_gap(batch) if clipped_ratio else None
    return StepRecord(
        step=number,
        loss=loss,
        critic_loss=losses_by_role["critic"] if "critic" in present else None,
        policy_loss=losses_by_role["policy"] if "policy" in present else None,
        chat_loss=losses_by_role["chat"] if "chat" in present else None,
        demonstration_loss=losses_by_role["demonstration"] if "demonstration" in present else None,
        anchor_kl=kl_mean if anchor else None,
        learning_rate=rate,
        grad_norm=norm,
        rows=len(batch),
        label_tokens=sum(len(row.label_ids) for row in batch if row.has_label),
        tokens=sum(row.tokens for row in batch),
        value_loss=value_mean if valued else None,
        clipped_share=clipped / sampled if sampled else None,
        old_kl=old_kl / sampled if sampled else None,
        engine_gap_mean=gap.mean if gap else None,
        engine_gap_max=gap.largest if gap else None,
        engine_k3=gap.k3 if gap else None,
    )
