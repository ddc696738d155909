"""What survives the loss of Prefect's database."""

import shutil
from pathlib import Path

import pytest

from tasks.pipeline import STAGES
from tests.server.conftest import LocalStack

pytestmark = pytest.mark.server


def test_a_run_goes_on_after_prefects_database_is_lost(stack: LocalStack, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--data", str(data), "--config", str(stack.config), "--run", "kept"]

    def how(said: str) -> dict[str, str]:
        table = [line.split() for line in said.split("Iteration 0 of run 'kept'")[1].splitlines()]
        return {row[0]: row[-1] for row in table if row and row[0] in STAGES}

    first = how(stack.nlac("iterate", *options).stdout)
    assert first and set(first.values()) == {"computed"}
    shutil.rmtree(data / ".stack")
    again = how(stack.nlac("iterate", *options, "--iteration", "0").stdout)
    assert again == dict.fromkeys(first, "reused")
