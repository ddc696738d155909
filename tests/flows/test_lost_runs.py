"""A stack ends the runs that its own workers lost: an earlier stack's, a worker's that died, a host's that is gone."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from socket import gethostname
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.stack.hosts import WORKER_LABEL, GoneWorkers, host_of, host_tag, worker_name
from flows.stack.lost_runs import STARTING_SECONDS, Situation, Verdict, end_left_runs, end_lost_runs, judge
from flows.stack.private import stack_secret
from schemas.config import PoolsSection
from tests.support.stack import LocalStack

FAR = worker_name("inference", "far-away")
HERE = worker_name("inference")
LIVES, LOST, IN_DOUBT = Verdict.LIVES, Verdict.LOST, Verdict.IN_DOUBT


@pytest.mark.parametrize(
    ("worker", "process", "state", "old", "now", "verdict"),
    [
        (FAR, "1", StateType.RUNNING, True, Situation(), LIVES),  # its pid says nothing here
        (FAR, "1", StateType.RUNNING, True, Situation(gone=[FAR]), LOST),
        (FAR, None, StateType.RUNNING, True, Situation(gone=[FAR], starting=True), LOST),
        (
            FAR,
            "1",
            StateType.PENDING,
            False,
            Situation(gone=[FAR]),
            IN_DOUBT,
        ),  # perhaps taken by another just now
        (FAR, "1", StateType.PENDING, True, Situation(gone=[FAR]), LOST),
        ("their worker", "1", StateType.RUNNING, True, Situation(gone=["their worker"]), LIVES),
        ("nlac-inference", "1", StateType.RUNNING, True, Situation(starting=True), LIVES),
        (HERE, None, StateType.RUNNING, False, Situation(), IN_DOUBT),
        (HERE, None, StateType.RUNNING, True, Situation(), LOST),
        (HERE, None, StateType.RUNNING, False, Situation(starting=True), LOST),
        ("", "1", StateType.RUNNING, True, Situation(starting=True), LIVES),  # of a host that nobody knows
        ("", None, StateType.PENDING, True, Situation(others=True), LIVES),
        ("", None, StateType.PENDING, True, Situation(), LOST),
        ("", None, StateType.PENDING, False, Situation(starting=True), LOST),
        ("", None, StateType.PENDING, False, Situation(others=True, starting=True), IN_DOUBT),
    ],
)
def test_a_run_is_lost_only_if_its_own_host_says_so(
    worker: str, process: str | None, state: StateType, old: bool, now: Situation, verdict: Verdict
) -> None:
    age = timedelta(seconds=STARTING_SECONDS + 1 if old else 0)
    run = FlowRun(
        flow_id=uuid4(),
        labels={WORKER_LABEL: worker} if worker else {},
        infrastructure_pid=process,
        state_type=state,
        state=State(type=state, timestamp=datetime.now(UTC) - age),
    )
    assert judge(run, now) is verdict


def test_a_worker_s_name_names_its_host() -> None:
    assert host_of(FAR) == "far-away" and host_of(HERE) == gethostname()
    for theirs in (
        "nlac-inference",
        "inference@far-away",
        "nlac-anything@far-away",
        "ProcessWorker 1",
        "nlac-training@",
    ):
        assert host_of(theirs) is None


def test_a_worker_is_gone_when_it_is_offline_twice_while_our_own_are_online() -> None:
    hosts, there = GoneWorkers(), worker_name("training", "far-away")
    up = {HERE: True, FAR: True, there: True, "theirs": False}
    assert hosts.look(up) == set()
    assert hosts.look({**up, FAR: False}) == set(), "perhaps the server was away"
    assert hosts.look({**up, FAR: False, HERE: False}) == set(), "it was: it misses our own"
    assert hosts.look({**up, FAR: False}) == set()
    assert hosts.look({**up, FAR: False}) == {FAR}
    assert hosts.look({**up, FAR: False}) == set(), "said once"
    assert hosts.look({**up, FAR: False, there: False}) == set()
    assert hosts.look({**up, FAR: False, there: False}) == {FAR, there}
    assert hosts.look(up) == set()
    assert [hosts.look({**up, FAR: False}) for _ in range(2)] == [set(), {FAR}], "it was back between"


@pytest.mark.server
@pytest.mark.parametrize("working", [False, True])
def test_only_the_runs_of_own_workers_that_are_gone_are_ended(stack: LocalStack, working: bool) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pools = PoolsSection()
    pool = pools.orchestration
    ours, far = worker_name("orchestration"), worker_name("orchestration", "far-away")
    runs: dict[str, str] = {}

    def lives(run: str) -> str:
        """The process of a worker for a run."""
        environment = {**os.environ, "PREFECT__FLOW_RUN_ID": run}
        living.append(
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
        )
        return str(living[-1].pid)

    living: list[subprocess.Popen[bytes]] = []
    cases: dict[str, tuple[str | None, str, Callable[[str], str | None]]] = {
        "lost": (pool, ours, lambda run: str(gone.pid)),
        "taken": (pool, ours, lambda run: str(os.getpid())),  # the pid is another process's now
        "alive": (pool, ours, lives),
        "just taken": (pool, ours, lambda run: None),  # a worker that works will name its process
        "elsewhere": (pool, far, lambda run: str(gone.pid)),
        "of another's worker": (pool, "theirs", lambda run: str(gone.pid)),
        "of another's pool": ("theirs", ours, lambda run: str(gone.pid)),
        "by-hand": (None, "", lambda run: None),
        "of iterate": (None, "", lambda run: None),
    }

    async def ended() -> dict[str, str]:
        async with get_client() as client:
            flow = await client.create_flow_from_name("theirs")
            await client.create_work_pool(WorkPoolCreate(name="theirs", type="process"))
            for name, (pool, worker, process) in cases.items():
                asked = {
                    "flow_id": str(flow),
                    "name": name,
                    "work_pool_name": pool,
                    "labels": {WORKER_LABEL: worker} if worker else {},
                    "tags": [host_tag()] if name == "of iterate" else [],
                    "state": {"type": "RUNNING"},
                }
                runs[name] = str(stack.api("/flow_runs/", asked)["id"])
                await client.update_flow_run(runs[name], infrastructure_pid=process(runs[name]))
            if working:
                assert not await end_lost_runs(client, pools), "one is in doubt"
            else:
                await end_left_runs(client, pools)
            states = {name: str((await client.read_flow_run(run)).state_type) for name, run in runs.items()}
            if working:
                await end_lost_runs(client, pools, [far])
                assert (await client.read_flow_run(runs["elsewhere"])).state_type is StateType.CRASHED
            await client.delete_work_pool("theirs")
            return states

    known = {PREFECT_API_URL: stack.api_url, PREFECT_API_AUTH_STRING: stack_secret(stack.data)}
    with temporary_settings(known):
        states = asyncio.run(ended())
    for process in living:
        process.communicate(b"\n")
    for run in runs.values():
        stack.api(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLED"}, "force": True})
    lost = {name for name, state in states.items() if "CRASHED" in state}
    assert lost == {"lost", "taken"} | (set() if working else {"just taken", "of iterate"})
    assert all("RUNNING" in state for name, state in states.items() if name not in lost)
