"""Target parameters: an exponential moving average of the adapter in training."""

from collections.abc import Mapping

import torch


class TargetParameters:
    """theta_bar <- (1 - tau) theta_bar + tau theta after every optimizer step, in float32 (arXiv 2512.04601).

    The average is over the trainable parameters, the LoRA matrices A and B each by itself. In bfloat16 a step's change
    would be rounded away: it is far below half a unit in the last place of a weight.

    Args:
        tensors: theta_bar to start from, by name as in an adapter file; copied.
        tau: share taken over per step.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], tau: float) -> None:
        self.tau = tau
        self.tensors = {name: value.detach().to(torch.float32, copy=True) for name, value in tensors.items()}
        self.steps = 0

    @torch.no_grad()
    def update(self, live: Mapping[str, torch.Tensor]) -> None:
        """Move one step towards `live`, the parameters after an optimizer step, under the same names."""
        for name, average in self.tensors.items():
            average.mul_(1.0 - self.tau).add_(live[name].to(average.dtype), alpha=self.tau)
        self.steps += 1

    @property
    def moved(self) -> float:
        """Share of the target that these steps replaced: 1 - (1 - tau)^steps."""
        return 1.0 - (1.0 - self.tau) ** self.steps
