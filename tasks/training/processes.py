"""The processes that train one model together: each one's share of the work, and sums over all of them.

Each process computes the gradients of its share of a step's micro-batches. They are summed, not averaged, because a
row's coefficient already counts the whole batch. So the number of processes changes only the order of summation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int = 0  # process 0 writes what the stage leaves
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """This process's items, each with whether it counts.

        All processes get equally many, because a sharded model needs them all in every pass. Where items run short, a
        process repeats one, which does not count.
        """
        passes = -(-len(items) // self.size)
        numbers = [number * self.size + self.rank for number in range(passes)]
        return [(items[min(n, len(items) - 1)], n < len(items)) for n in numbers]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of parameters that each process holds whole; sharded ones are summed by FSDP."""
        if self.size == 1:
            return
        held = [p for p in parameters if not isinstance(p, DTensor)]
        for parameter in held:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in held if p.grad is not None]
        if not gradients:
            return
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather(self, found: dict[str, Any]) -> dict[str, Any]:
        """The union of what all processes found; no two have a key in common."""
        if self.size == 1:
            return found
        parts: list[dict[str, Any]] = [{} for _ in range(self.size)]
        dist.all_gather_object(parts, found)
        return {key: value for part in parts for key, value in part.items()}


ALONE = Processes()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with all its shards, in host memory; every process must call this."""
    detached = tensor.detach()
    return (detached.full_tensor() if isinstance(detached, DTensor) else detached).cpu()


def to_write(tensor: torch.Tensor) -> torch.Tensor:
    """A whole tensor as the process that writes needs it; in the others only its shape and type (device meta)."""
    return tensor if not dist.is_initialized() or dist.get_rank() == 0 else tensor.to("meta")


def placed_as(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A whole tensor, moved to the device of `model` and sharded like it."""
    moved = tensor.to(model.device)
    if isinstance(model, DTensor):
        return distribute_tensor(moved, model.device_mesh, model.placements, src_data_rank=None)
    return moved
