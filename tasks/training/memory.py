"""What does not fit into memory is tried again in smaller pieces, by all processes that train together."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from tasks.engines.memory import is_out_of_memory, release_cached
from tasks.training.records import TrainingError
from tasks.training.trainable import Trainable

T = TypeVar("T")
_log = logging.getLogger("nlac.training")


class MicroBatchTooLarge(TrainingError):
    """A process's memory does not hold a micro-batch. All processes raise it together, and none has gradients."""


@contextmanager
def within_memory(trainable: Trainable, what: str, size: int) -> Iterator[None]:
    """Turn the end of memory into MicroBatchTooLarge, in every process.

    The error is not chained: its traceback would keep what fills the memory.

    Args:
        trainable: the model in training. A sharded one's processes wait for each other within a pass, so it can't go
            on.
        what: is computed; begins the message.
        size: rows per micro-batch.

    Raises:
        MicroBatchTooLarge: memory does not suffice here, or in another process.
        TrainingError: likewise, and the model is sharded.
    """
    full = False
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        full = True
    message = f"{what}: the device's memory does not hold micro-batches of {size} rows"
    if full and trainable.sharded:
        raise TrainingError(f"{message}; lower micro_batch_rows of this training section")
    device = trainable.model.device
    if trainable.processes.sum(torch.tensor(float(full), device=device)).item():
        for parameter in trainable.parameters.values():
            parameter.grad = None
        raise MicroBatchTooLarge(
            f"{message}; set trainer.gradient_checkpointing, or lower model.context_length"
        )


def halving(size: int, compute: Callable[[int], T]) -> tuple[T, int]:
    """Compute with micro-batches of `size` rows, or of half as many until they fit.

    Returns:
        the result, and the rows per micro-batch that fitted.

    Raises:
        MicroBatchTooLarge: one row does not fit.
    """
    while True:
        try:
            return compute(size), size
        except MicroBatchTooLarge as error:
            if size == 1:
                raise
            _log.warning("%s; it goes on with %d", str(error).partition(";")[0], (size + 1) // 2)
            size = (size + 1) // 2
        release_cached()
