"""The state of an unfinished training, from which a killed one resumes.

One file, replaced atomically: parameters, target parameters, the optimizer's moments and step count (which also
determines the learning rate), torch's random state (the CPU's; training draws nothing from it), and the records and
scores so far. The rows still to come are not in it: the plan of batches follows from the seed, and the number of
records says how far it has come.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tasks.training.divergence import finite
from tasks.training.ema import TargetParameters
from tasks.training.optimizer import Optimizer
from tasks.training.processes import placed_as
from tasks.training.records import StepRecord, TrainingError
from tasks.training.trainable import Trainable


class Checkpoint:
    """The records and scores of a training so far, and the file that holds its state.

    Args:
        path: the file; None: nothing is saved.
        every: optimizer steps between two saves; 0: never.
        trainable: the model in training; the first of its processes writes.
        adamw: its optimizer.
        average: its target parameters, if they follow.
    """

    def __init__(
        self,
        path: Path | None,
        every: int,
        trainable: Trainable,
        adamw: Optimizer,
        average: TargetParameters | None,
    ) -> None:
        self.path, self.every = path, every
        self.trainable, self.adamw, self.average = trainable, adamw, average
        self.steps: list[StepRecord] = []
        self.scores: dict[str, tuple[float, ...]] = {}

    def restore(self) -> bool:
        """Resume from the file; returns False, and changes nothing, where there is none.

        Raises:
            TrainingError: it can't be read, or is of another model.
        """
        if self.path is None or not self.path.is_file():
            return False
        try:
            saved = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            self.steps = [StepRecord(**record) for record in saved["steps"]]
            self.scores = saved["scores"]
            _put(self.trainable.parameters, saved["parameters"])
            self.adamw.resume(saved["optimizer"], self.path)
            if self.average is not None:
                _put(self.average.tensors, saved["target"])
                self.average.steps = len(self.steps)
            torch.set_rng_state(saved["rng"])
        except Exception as error:  # whatever torch's zip and pickle readers raise
            raise TrainingError(
                f"{self.path}: this checkpoint of an unfinished stage can't be used ({error}); delete it, and the "
                "stage begins again"
            ) from error
        return True

    def save_if_due(self, total: int) -> None:
        """Write the file after each `every`-th of `total` steps, except the last.

        Raises:
            TrainingError: a parameter is not finite. The file stays as it was: the last good one.
        """
        done = len(self.steps)
        if self.path is None or not self.every or done % self.every or done == total:
            return
        content = {
            "steps": [asdict(record) for record in self.steps],
            "scores": self.scores,
            "parameters": finite(self.trainable.parameters, f"step {done - 1}"),
            "optimizer": self.adamw.state(),
            "target": finite(self.average.tensors, f"step {done - 1}") if self.average else None,
            "rng": torch.get_rng_state(),
        }
        if self.trainable.processes.first:
            _write(content, self.path)


@torch.no_grad()
def _put(tensors: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(placed_as(saved[name], tensor))


def _write(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_suffix(".writing")
    with staging.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
