"""Refuses a training whose loss diverges, or that has broken its parameters, before anything is written."""

import math
from collections.abc import Mapping, Sequence

import torch

from tasks.training.processes import to_write, whole
from tasks.training.records import StepRecord, TrainingDiverged

STEPS = 3  # that a loss must stay too high
FACTOR = 1.5  # times a uniform guess, or the first loss where that is higher

REMEDY = "lower learning_rate or clip_norm of this training section, or set its `optimizer: reset`"


def refuse_divergence(steps: Sequence[StepRecord], vocabulary: int) -> None:
    """Refuse a loss that stays above what knowing nothing costs: ln(vocabulary) nats per token, for a uniform guess.

    Args:
        steps: all so far.
        vocabulary: tokens of the model.

    Raises:
        TrainingDiverged: in the last STEPS steps the worst role's mean loss was more than FACTOR times that.
    """
    most = FACTOR * max(math.log(vocabulary), _worst(steps[0]))
    if len(steps) > STEPS and min(map(_worst, steps[-STEPS:])) > most:
        raise TrainingDiverged(
            f"step {steps[-1].step}: the loss diverges: for {STEPS} steps a role's mean loss was above {most:.1f} nats "
            f"per token, the last {_worst(steps[-1]):.1f}, the first {_worst(steps[0]):.1f}; {REMEDY}"
        )


def _worst(step: StepRecord) -> float:
    """The highest mean loss of a role (nats per token); 0 where no row has a label."""
    losses = (step.critic_loss, step.policy_loss, step.chat_loss, step.demonstration_loss)
    return max((loss for loss in losses if loss is not None), default=0.0)


def finite(tensors: Mapping[str, torch.Tensor], after: str) -> dict[str, torch.Tensor]:
    """Tensors with all their shards, in the host memory of the process that writes. Every process must call this.

    Args:
        tensors: by name.
        after: begins the message.

    Raises:
        TrainingDiverged: one has a value that is not finite.
    """
    content = {}
    for name, tensor in tensors.items():
        together = whole(tensor)
        if not torch.isfinite(together).all():
            raise TrainingDiverged(f"{after}: {name} is not finite; {REMEDY}")
        content[name] = to_write(together)
    return content
