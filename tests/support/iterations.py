"""Whole iterations that are small enough for a test."""

import asyncio
import gc
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tasks.pipeline.runner import StageResult

Iterate = Callable[..., list[StageResult]]
ROLES = ("policy", "predict", "bootstrap", "correct", "evaluate", "refine")


def small_config(checkpoint: Path, rules: str = "tests.support.rules:number_game", **changes: Any) -> Config:
    """A number game of few rows: scripted roles, a tiny model in training.

    Args:
        checkpoint: the model that the training stages train.
        rules: the scripted players.
        changes: sections of the configuration; a mapping replaces only the fields it names.
    """
    structured = ("policy", "evaluate", "refine")
    base: dict[str, Any] = {
        "run": "trial",
        "model": {
            "name": str(checkpoint), "dtype": "float32", "context_length": 6000, "device": "cpu",
            "lora": {"r": 2, "alpha": 4},
        },
        "engines": {"rules": {"backend": "scripted", "rules": rules}},
        "roles": {r: {"engine": "rules", "structured": r in structured} for r in ROLES},
        "rollout": {"episodes": 4, "max_steps": 6},
        "replay": {"transitions": 10},
        "critic": {"batch_rows": 8, "micro_batch_rows": 4},
        "policy": {"batch_rows": 8, "micro_batch_rows": 4},
        "improvement": {"states": 6, "verdict": "written"},
        "evaluation": {"episodes": 3},
    }  # fmt: skip
    for name, value in changes.items():
        base[name] = (
            {**base[name], **value} if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        )
    return Config.model_validate(base)


@contextmanager
def dies() -> Iterator[None]:
    """The block ends by the death of the player `counted`; the task that it ended counts as looked at.

    Else asyncio logs the SystemExit again, with its traceback, when the task is collected. Where Python 3.11 parses a
    file just then, that fails (CPython issue 106905).
    """
    with pytest.raises(SystemExit, match="died on purpose"):
        yield
    for task in gc.get_objects():
        if issubclass(type(task), asyncio.Task) and task.done() and not task.cancelled():
            task.exception()


class Finished:
    """Runs whose first iterations are finished: computed once for each configuration, copied for each test.

    Args:
        folder: what is computed, by this process and by others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, store: Store, config: Config, iterations: int = 1) -> None:
        """Fill an empty store with a run's first iterations."""
        shutil.copytree(self._computed(config, iterations), store.root, symlinks=True)

    def _computed(self, config: Config, iterations: int) -> Path:
        name = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
        folder = self.folder / f"{name}-{iterations}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                made = folder.with_suffix(".made")  # a failure leaves no folder that looks finished
                if iterations > 1:
                    shutil.copytree(self._computed(config, iterations - 1), made, symlinks=True)
                asyncio.run(run_iteration(Store(made), config))
                made.rename(folder)
        return folder
