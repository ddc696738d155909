"""`nlac iterate` (`make iteration`) interrupted by the user. test_iteration.py has its end when a stage fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.stack.control import read_stack
from flows.stack.processes import marked_processes
from schemas.load import PROJECT_ROOT
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.mark.long
def test_an_interrupt_stops_all_that_iterate_started(stack: LocalStack, steer: Path, tmp_path: Path) -> None:
    (steer / "wait").touch()
    (steer / "child").touch()
    data = tmp_path / "data"
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "iterate",
        "--data",
        str(data),
        "--config",
        str(stack.config),
    ]
    with (tmp_path / "said").open("w") as said:
        iterate = subprocess.Popen(
            command, cwd=PROJECT_ROOT, env=stack.environment, stdout=said, stderr=said, start_new_session=True
        )
    wait_until(lambda: (steer / "child-pid").exists(), 180, "a request under way")
    second = read_stack(data)
    assert second is not None and second.port != read_stack(stack.data).port  # type: ignore[union-attr]
    assert marked_processes(data) != []
    os.killpg(iterate.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
    assert iterate.wait(60) != 0
    assert marked_processes(data) == []
    assert read_stack(data) is None
    assert read_stack(stack.data) is not None, "the other stack is untouched"
    assert "Stopping the local stack" in (tmp_path / "said").read_text()
