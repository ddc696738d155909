"""A real stack (`nlac up`), once for all tests here, with a scripted player and a tiny model."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from schemas.load import PROJECT_ROOT
from tests.support.stack import CONFIG, LocalStack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[LocalStack]:
    base = tmp_path_factory.mktemp("stack")
    for folder in ("home", "steer"):
        (base / folder).mkdir()
    config = base / "trial.yaml"
    shape = {
        "name": str(tiny_checkpoint),
        "dtype": "float32",
        "context_length": 4096,
        "lora": {"r": 2, "alpha": 4},
    }
    config.write_text(yaml.safe_dump({**CONFIG, "run": "trial", "model": shape}))
    foreign = {
        "HOME": str(base / "home"),
        "NLAC_TEST_STEER": str(base / "steer"),
        "PREFECT_API_URL": "http://127.0.0.1:9/api",  # nobody listens there: whoever used it would fail
        "PYTHONPATH": str(PROJECT_ROOT),
    }
    kept = {k: v for k, v in os.environ.items() if k not in ("NLAC_DATA", "XDG_CACHE_HOME", "HF_HOME")}
    local = LocalStack(base / "data", base / "home", base / "steer", config, {**kept, **foreign})
    local.up_said = local.nlac("up", "--data", str(local.data)).stdout
    try:
        yield local
    finally:
        local.nlac("down", "--data", str(local.data))


@pytest.fixture
def steer(stack: LocalStack) -> Iterator[Path]:
    """The folder that steers the scripted player; empty again after the test."""
    yield stack.steer
    for path in stack.steer.iterdir():
        path.unlink()
