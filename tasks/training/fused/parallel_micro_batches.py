"""Micro-batches computed in parallel on a CPU, each on cores of its own.

The operations of a small model, split over all cores, wait for each other thousands of times per step. Whole
micro-batches wait for each other once.
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
    """A pool of `count` threads that share the cores; with a count of 1 the caller computes, on all cores."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count == 1:
            return
        cores, started = torch.get_num_threads(), Barrier(count + 1)

        def start() -> None:
            torch.set_num_threads(max(1, cores // count))
            started.wait()

        self._pool = ThreadPoolExecutor(count, "micro-batch", start)
        for _ in range(count):
            self._pool.submit(int)
        started.wait()
        torch.set_num_threads(cores)  # threads that begin later would inherit the pool's number

    def map(self, compute: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """`compute` of each item, in order, under the caller's gradient mode."""
        if self._pool is None:
            return map(compute, items)
        enabled = torch.is_grad_enabled()

        def under_mode(item: T) -> R:
            with torch.set_grad_enabled(enabled):
                return compute(item)

        return self._pool.map(under_mode, items)


def parallel_micro_batches_for(model: PreTrainedModel, passes: int) -> ParallelMicroBatches:
    """As many threads as cores, but no more than `passes`, on a CPU; one otherwise.

    One, too, where rotary embeddings depend on the input's length: the model caches them, so two forward passes at once
    would disturb each other.
    """
    rope = getattr(model.config, "rope_parameters", None) or {}
    by_length = rope.get("rope_type") in ("dynamic", "longrope")
    if model.device.type != "cpu" or by_length:
        return ParallelMicroBatches()
    return ParallelMicroBatches(max(1, min(torch.get_num_threads(), passes)))
