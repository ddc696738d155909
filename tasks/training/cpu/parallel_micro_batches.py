"""Micro-batches computed side by side on a CPU, each on cores of its own.

A small model's operations, split over all cores, wait for each other thousands of times a step. Whole micro-batches
wait for each other once.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from transformers import PreTrainedModel

T = TypeVar("T")
R = TypeVar("R")


class ParallelMicroBatches:
    """Threads that compute side by side; one lane is the caller itself, on all its cores.

    Args:
        count: of lanes.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count == 1:
            return
        cores, started = torch.get_num_threads(), Barrier(count + 1)

        def start() -> None:
            torch.set_num_threads(max(1, cores // count))
            started.wait()

        self._pool = ThreadPoolExecutor(count, "lane", start)
        for _ in range(count):
            self._pool.submit(int)
        started.wait()
        torch.set_num_threads(cores)  # the lanes' number is also what threads that begin later would take

    def map(self, compute: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """What `compute` makes of each item, in their order, under the caller's gradient mode."""
        if self._pool is None:
            return map(compute, items)
        enabled = torch.is_grad_enabled()

        def under_mode(item: T) -> R:
            with torch.set_grad_enabled(enabled):
                return compute(item)

        return self._pool.map(under_mode, items)


def parallel_micro_batches_for(model: PreTrainedModel, passes: int) -> ParallelMicroBatches:
    """A core each, or several, on a CPU where several passes of a model at once are safe.

    Rotary embeddings that depend on the length of the input are kept in the model itself.

    Args:
        model: to be computed.
        passes: that there are at once; more lanes would leave cores idle.
    """
    rope = getattr(model.config, "rope_parameters", None) or {}
    by_length = rope.get("rope_type") in ("dynamic", "longrope")
    if model.device.type != "cpu" or by_length:
        return ParallelMicroBatches()
    return ParallelMicroBatches(max(1, min(torch.get_num_threads(), passes)))
