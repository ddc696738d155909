"""Prefect's server is killed while a stage works, and started again by the supervisor."""

from pathlib import Path
from urllib.error import URLError

import pytest

from flows.stack import gpu_limit
from flows.stack.processes import marked_processes
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def slots(stack: LocalStack) -> int | None:
    """How many hold the GPU; None while the server does not answer."""
    try:
        return int(stack.api(f"/v2/concurrency_limits/{gpu_limit()}")["active_slots"])
    except (URLError, ConnectionError):
        return None


def test_a_stage_goes_on_and_the_gpu_is_free_in_the_end(stack: LocalStack, steer: Path) -> None:
    (steer / "wait").touch()
    run = stack.start("rollout", config=str(stack.config), run="served-anew", iteration=0)
    wait_until(lambda: slots(stack) == 1, 120, "the stage at work")
    (server,) = (p for p in marked_processes(stack.data) if "server" in p.cmdline()[:5])
    server.kill()
    wait_until(lambda: slots(stack) is None, 30, "the server's end")
    wait_until(lambda: slots(stack) == 1, 120, "the server's next answer")
    (steer / "wait").unlink()
    assert stack.finish(run)["state_type"] == "COMPLETED"
    wait_until(lambda: slots(stack) == 0, 30, "the end of the lease")
