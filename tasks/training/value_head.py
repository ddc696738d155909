"""A scalar value head on the hidden state of the last prompt token: V(s) under the policy's prompt (algorithm ppo), or
Q(s, a) under the successor's, which shows the action (algorithm sac).

    <stage folder>/value_head.pt            weight [1, hidden size] and bias [1], float32
    <stage folder>/target_value_head.pt     the same of its target, where it has one

It begins at 0, so that all values are 0 before its first step. Each process of a sharded model holds it whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from tasks.training.data import Encoded
from tasks.training.processes import whole
from tasks.training.records import TrainingError
from tasks.training.trainable import Trainable

FILE, TARGET_FILE = "value_head.pt", "target_value_head.pt"
PREFIX = "value_head."  # of the names of its parameters among the others


def with_value_head(trainable: Trainable, start: Path | None) -> Trainable:
    """A model in training with a value head, whose parameters train too.

    Args:
        trainable: the model.
        start: file of an earlier head; None: a new one.

    Raises:
        TrainingError: the file can't be read, or is of another model.
    """
    head = _head(trainable, start)
    named = {PREFIX + name: parameter for name, parameter in head.named_parameters()}
    return replace(trainable, parameters={**trainable.parameters, **named}, value_head=head)


def _head(trainable: Trainable, start: Path | None) -> nn.Linear:
    model = trainable.model
    head = nn.Linear(model.config.hidden_size, 1, device=model.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if start is not None:
        try:
            head.load_state_dict(torch.load(start, map_location=model.device, weights_only=True))
        except Exception as error:  # whatever torch's zip and pickle readers raise
            raise TrainingError(
                f"{start}: this value head can't be used ({error}); run the stage that wrote it again"
            ) from error
    return head


def head_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of the value head among named tensors; none where there is no head."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}


def target_head_tensors(trainable: Trainable, target: Path | None) -> dict[str, torch.Tensor]:
    """The target's head to start from, under the names of `head_tensors`; None: the one in training.

    Raises:
        TrainingError: the file can't be read, or is of another model.
    """
    if trainable.value_head is None or target is None:
        return head_tensors(trainable.parameters)
    return {PREFIX + name: tensor for name, tensor in _head(trainable, target).state_dict().items()}


def save_value_head(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a head's file from the tensors of `head_tensors`."""
    torch.save({name.removeprefix(PREFIX): whole(value) for name, value in tensors.items()}, path)


def prompt_values(head: nn.Linear, states: torch.Tensor, rows: Sequence[Encoded]) -> torch.Tensor:
    """The value of each row, at its last prompt token, which predicts the first token of the label.

    Args:
        head: the value head.
        states: hidden states where a label token is predicted, row after row, [N, H].
        rows: R rows.

    Returns:
        float32 [R].
    """
    firsts, begin = [], 0
    for row in rows:
        firsts.append(begin)
        begin += len(row.label_ids)
    with torch.autocast(states.device.type, enabled=False):
        values: torch.Tensor = head(states[firsts].float())
    return values[:, 0]


def value_losses(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """(1/2) max((V - R)^2, (clip(V, V_old +- clip) - R)^2), as in PPO's own code (Schulman et al., arXiv 1707.06347).

    Args:
        values: V(s) or Q(s, a), float32 [R].
        old: the values before the stage, [R].
        returns: what V is to predict, [R].
        clip: None: not clipped.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    near = old + (values - old).clamp(-clip, clip)
    return torch.maximum(plain, (near - returns).square()) / 2


def value_loss(
    head: nn.Linear,
    states: torch.Tensor,
    rows: Sequence[Encoded],
    shares: Mapping[str, float],
    clip: float | None,
) -> torch.Tensor:
    """The part of some rows in a batch's mean value loss, a float32 scalar.

    Args:
        head: the value head.
        states: hidden states where a label token is predicted, row after row, [N, H].
        rows: R rows.
        shares: factor of a row's loss, for those that have a value to predict (`value_shares` of the whole batch).
        clip: as in `value_losses`.
    """
    valued = [(number, row.value, shares[row.row_id]) for number, row in enumerate(rows) if row.value]
    if not valued:
        return torch.zeros((), device=states.device)
    values = prompt_values(head, states, rows)[[number for number, _, _ in valued]]
    old, targets, factors = (
        torch.tensor(column, device=values.device)
        for column in zip(*((value.old, value.target, share) for _, value, share in valued), strict=True)
    )
    return factors @ value_losses(values, old, targets, clip)


def value_shares(batch: Sequence[Encoded]) -> dict[str, float]:
    """The factor of each row's value loss in the batch's: w / rows that have a value to predict."""
    valued = [row for row in batch if row.value]
    return {row.row_id: row.weight / len(valued) for row in valued}
