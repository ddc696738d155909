"""Whole iterations in this process: every stage, table, trainer and replay draw real; a tiny model,
scripted roles."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tasks.pipeline.runner import StageResult
from tests.support.tiny import make_tiny_checkpoint

Iterate = Callable[..., list[StageResult]]
ROLES = ("policy", "predict", "bootstrap", "correct", "evaluate", "refine")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture(scope="session")
def make_config(tiny_checkpoint: Path) -> Callable[..., Config]:
    """A configuration small enough for a test, with sections replaced."""

    def make(rules: str = "tests.support.rules:number_game", **changes: Any) -> Config:
        structured = ("policy", "evaluate", "refine")
        base: dict[str, Any] = {
            "run": "trial",
            "model": {
                "name": str(tiny_checkpoint), "dtype": "float32", "context_length": 6000, "device": "cpu",
                "lora": {"r": 2, "alpha": 4},
            },
            "engines": {"rules": {"backend": "scripted", "rules": rules}},
            "roles": {r: {"engine": "rules", "structured": r in structured} for r in ROLES},
            "rollout": {"episodes": 4, "max_steps": 6},
            "replay": {"transitions": 10},
            "critic": {"batch_rows": 8, "micro_batch_rows": 4},
            "policy": {"batch_rows": 8, "micro_batch_rows": 4},
            "improvement": {"states": 6},
            "evaluation": {"episodes": 3},
        }  # fmt: skip
        for name, value in changes.items():
            base[name] = (
                {**base[name], **value}
                if isinstance(value, dict) and isinstance(base.get(name), dict)
                else value
            )
        return Config.model_validate(base)

    return make


@pytest.fixture
def iterate(store: Store) -> Callable[..., list[StageResult]]:
    """Run an iteration in this process."""

    def run(
        config: Config, iteration: int | None = None, *, force: bool = False, at: Store | None = None
    ) -> list[StageResult]:
        return asyncio.run(run_iteration(at or store, config, iteration, force=force))

    return run
