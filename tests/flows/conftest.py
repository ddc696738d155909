"""A real stack (`nlac up`), once for all tests here, with a scripted player and a tiny model."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.stack.processes import marked_processes
from flows.stack.record import read_stack
from schemas.load import PROJECT_ROOT
from tasks.imports import ALLOW_IMPORT
from tests.support.planted import KEY
from tests.support.stack import CONFIG, LocalStack


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[LocalStack]:
    """It ends with the tests of this folder, which is a package: an idle stack takes a share of a core."""
    base = tmp_path_factory.mktemp("stack")
    for folder in ("home", "steer", "stands"):
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
        "PLANTED_KEY": KEY,
        "PREFECT_API_URL": "http://127.0.0.1:9/api",  # nobody listens there: whoever used it would fail
        "PYTHONPATH": f"{PROJECT_ROOT}{os.pathsep}.",
        ALLOW_IMPORT: "tests,nim",
    }
    kept = {k: v for k, v in os.environ.items() if k not in ("NLAC_DATA", "XDG_CACHE_HOME", "HF_HOME")}
    local = LocalStack(
        base / "data", base / "home", base / "steer", base / "stands", config, {**kept, **foreign}
    )
    local.up_said = local.nlac("up", "--data", str(local.data), cwd=local.stands).stdout
    try:
        yield local
    finally:
        leaves_nothing(local)


def leaves_nothing(local: LocalStack) -> None:
    """`nlac down` leaves no process and frees the port. Here, because a start costs as much as ten tests."""
    running = read_stack(local.data)
    assert running is not None and marked_processes(local.data) != []
    assert "is down" in local.nlac("down", "--data", str(local.data)).stdout
    assert marked_processes(local.data) == []
    assert read_stack(local.data) is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", running.port)) != 0
    assert "was not up" in local.nlac("down", "--data", str(local.data)).stdout


@pytest.fixture
def steer(stack: LocalStack) -> Iterator[Path]:
    """The folder that steers the scripted player; empty again after the test."""
    yield stack.steer
    for path in stack.steer.iterdir():
        path.unlink()
