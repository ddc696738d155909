"""The state of an unfinished training, so that one that was killed goes on where it was.

One file, replaced atomically: parameters, target parameters, the optimizer's moments and step count (which is the
learning rate's schedule too), torch's random state (the CPU's; training draws nothing from it), the records and scores
so far. Which rows are still to come needs no place in it: the plan of batches follows from the seed, and the number of
records says how far it has come.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tasks.training.ema import TargetParameters
from tasks.training.optimizer import Optimizer
from tasks.training.processes import Processes, placed_as, whole
from tasks.training.records import StepRecord, TrainingError
from tasks.training.trainable import Trainable


class Checkpoint:
    """What a training has done so far, and its file.

    Args:
        path: the file; None keeps nothing.
        every: optimizer steps between two savings; 0: never.
        trainable: the model in training.
        adamw: its optimizer.
        average: its target parameters, if they follow.
        processes: among whom it trains; the first writes.

    Attributes:
        steps: records of the steps so far.
        scores: as `TrainingResult.scores`.
    """

    def __init__(
        self,
        path: Path | None,
        every: int,
        trainable: Trainable,
        adamw: Optimizer,
        average: TargetParameters | None,
        processes: Processes,
    ) -> None:
        self.path, self.every = path, every
        self.trainable, self.adamw, self.average, self.processes = trainable, adamw, average, processes
        self.steps: list[StepRecord] = []
        self.scores: dict[str, tuple[float, ...]] = {}

    def restore(self) -> bool:
        """Go on from the file; False where there is none, and nothing has changed.

        Raises:
            TrainingError: it can't be read, or is of another model.
        """
        if self.path is None or not self.path.is_file():
            return False
        try:
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
            self.steps = [StepRecord(**record) for record in saved["steps"]]
            self.scores = saved["scores"]
            _put(self.trainable.parameters, saved["parameters"])
            self.adamw.go_on(saved["optimizer"], self.path)
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
        """Write the file after each `every`-th step but the last, after which the stage's own output is written.

        Args:
            total: steps there will be.
        """
        done = len(self.steps)
        if self.path is None or not self.every or done % self.every or done == total:
            return
        content = {
            "steps": [asdict(record) for record in self.steps],
            "scores": self.scores,
            "parameters": {name: whole(value) for name, value in self.trainable.parameters.items()},
            "optimizer": self.adamw.state(),
            "target": None
            if self.average is None
            else {name: whole(value) for name, value in self.average.tensors.items()},
            "rng": torch.get_rng_state(),
        }
        if self.processes.first:
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
