"""A stack ends the runs that an earlier one lost, or a worker that died, and nobody else's."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.stack.private import stack_secret
from flows.stack.provision import end_lost_runs, settle_runs
from schemas.config import PoolsSection
from tests.support.stack import LocalStack

pytestmark = pytest.mark.server


@pytest.mark.parametrize("working", [False, True])
@pytest.mark.parametrize("here", ["", f"{socket.gethostname()}:"])
def test_only_the_runs_of_own_workers_that_are_gone_are_ended(
    stack: LocalStack, working: bool, here: str
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pools = PoolsSection()
    pool = pools.orchestration
    runs: dict[str, str] = {}

    def lives(run: str) -> str:
        """The process of a worker for a run."""
        environment = {**os.environ, "PREFECT__FLOW_RUN_ID": run}
        living.append(
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
        )
        return f"{here}{living[-1].pid}"

    living: list[subprocess.Popen[bytes]] = []
    cases: dict[str, tuple[str | None, Callable[[str], str | None]]] = {
        "lost": (pool, lambda run: f"{here}{gone.pid}"),
        "taken": (pool, lambda run: f"{here}{os.getpid()}"),  # the pid is another process's now
        "alive": (pool, lives),
        "just taken": (pool, lambda run: None),  # a worker that works will name its process
        "elsewhere": (pool, lambda run: "far-away:1"),
        "by-hand": (None, lambda run: None),
    }

    async def ended() -> dict[str, str]:
        async with get_client() as client:
            flow = await client.create_flow_from_name("theirs")
            for name, (pool, process) in cases.items():
                asked = {
                    "flow_id": str(flow),
                    "name": name,
                    "work_pool_name": pool,
                    "state": {"type": "RUNNING"},
                }
                runs[name] = str(stack.api("/flow_runs/", asked)["id"])
                await client.update_flow_run(runs[name], infrastructure_pid=process(runs[name]))
            if working:
                assert not await settle_runs(client, pools), "one is in doubt"
            else:
                await end_lost_runs(client, pools)
            return {name: str((await client.read_flow_run(run)).state_type) for name, run in runs.items()}

    known = {PREFECT_API_URL: stack.api_url, PREFECT_API_AUTH_STRING: stack_secret(stack.data)}
    with temporary_settings(known):
        states = asyncio.run(ended())
    for process in living:
        process.communicate(b"\n")
    for run in runs.values():
        stack.api(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLED"}, "force": True})
    lost = {name for name, state in states.items() if "CRASHED" in state}
    assert lost == {"lost", "taken"} | (set() if working else {"just taken"})
    assert all("RUNNING" in state for name, state in states.items() if name not in lost)
