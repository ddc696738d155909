"""A scalar value head V(s) on the hidden state of the last prompt token, trained beside the policy.

    <stage folder>/value_head.pt     weight [1, hidden size] and bias [1], float32

It begins at 0, so that V is 0 everywhere before its first step. Each process of a sharded model holds it whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from tasks.training.data import Encoded
from tasks.training.processes import whole
from tasks.training.records import TrainingError
from tasks.training.trainable import Trainable

FILE = "value_head.pt"


def with_value_head(trainable: Trainable, start: Path | None) -> Trainable:
    """A model in training with a value head, whose parameters train too.

    Args:
        trainable: the model.
        start: file of an earlier head; None: a new one.

    Raises:
        TrainingError: the file can't be read, or is of another model.
    """
    model = trainable.model
    head = nn.Linear(model.config.hidden_size, 1, device=model.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if start is not None:
        try:
            head.load_state_dict(torch.load(start, map_location=model.device, weights_only=True))
        except Exception as error:  # whatever torch's zip and pickle readers raise
            raise TrainingError(
                f"{start}: this value head can't be used ({error}); run the policy-distillation that wrote it again"
            ) from error
    named = {f"value_head.{name}": parameter for name, parameter in head.named_parameters()}
    return replace(trainable, parameters={**trainable.parameters, **named}, value_head=head)


def save_value_head(head: nn.Linear, folder: Path) -> None:
    """Write the head's file."""
    torch.save({name: whole(value) for name, value in head.state_dict().items()}, folder / FILE)


def prompt_values(head: nn.Linear, states: torch.Tensor, rows: Sequence[Encoded]) -> torch.Tensor:
    """V(s) of each row, at its last prompt token, which predicts the first token of the label.

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
        values: V(s), float32 [R].
        old: the values that the advantages were estimated with, [R].
        returns: what V is to predict, [R].
        clip: None: not clipped.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    near = old + (values - old).clamp(-clip, clip)
    return torch.maximum(plain, (near - returns).square()) / 2
