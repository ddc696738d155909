"""Ends flow runs whose processes are gone and whose end nobody could report.

Prefect would show them as running for ever. Whoever waits for them would wait as long. A run belongs to this stack if
it is in one of its pools and one of its workers took it, or if `nlac iterate` of this host ran it without a worker; all
others stay as they are. The process of a run is looked for on its own host alone. Elsewhere the heartbeats of its
worker decide (`flows.stack.hosts`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from socket import gethostname

import psutil
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.states import Cancelled, Crashed

from flows.stack.api import read_flow_runs
from flows.stack.hosts import WORKER_LABEL, host_of, host_tag
from schemas.config import PoolsSection

STARTING_SECONDS = 60.0
"""A worker that lives labels a run that it has taken, and notes its process, before that."""

_UNFINISHED = FlowRunFilterState(
    type=FlowRunFilterStateType(
        any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.SCHEDULED]
    )
)


class Verdict(Enum):
    """What is known of a run that Prefect shows as unfinished."""

    LIVES = "lives, or is not ours"
    LOST = "its process is gone"
    IN_DOUBT = "a worker may have just taken it"


@dataclass(frozen=True)
class Situation:
    """What runs are judged by.

    Attributes:
        gone: workers of other hosts whose heartbeats have ended.
        others: whether a worker of another host is at work, or one that is not ours.
        starting: whether this host's workers have not started yet, so that a run of theirs without a process is lost.
    """

    gone: Collection[str] = ()
    others: bool = False
    starting: bool = False


def judge(run: FlowRun, now: Situation) -> Verdict:
    """Whether a run in one of the stack's pools is lost."""
    worker = str(run.labels.get(WORKER_LABEL) or "")
    age = (datetime.now(UTC) - run.state.timestamp).total_seconds() if run.state else 0.0
    young = age < STARTING_SECONDS
    if young and run.state_type is StateType.PENDING and (now.others or not now.starting):
        return Verdict.IN_DOUBT  # label and process may be those of an earlier attempt
    if worker and host_of(worker) is None:
        return Verdict.LIVES
    if worker and host_of(worker) != gethostname():
        return Verdict.LOST if worker in now.gone else Verdict.LIVES
    if run.infrastructure_pid:
        return Verdict.LOST if worker and _is_gone(run) else Verdict.LIVES
    if now.starting and (worker or not now.others):
        return Verdict.LOST
    if young:
        return Verdict.IN_DOUBT
    return Verdict.LOST if worker or not now.others else Verdict.LIVES


def _is_gone(run: FlowRun) -> bool:
    """Whether the process that a worker of this host noted is another one's by now, or none's. A worker tells the
    process which run it is."""
    try:
        process = psutil.Process(int(str(run.infrastructure_pid).rpartition(":")[2]))
        return bool(process.environ().get("PREFECT__FLOW_RUN_ID") != str(run.id))
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False  # another user's


async def end_left_runs(client: PrefectClient, pools: PoolsSection) -> None:
    """Before this host's workers start, end runs of theirs that an earlier stack left; they would count for ever.

    Runs that had not started stay scheduled. Where no other host is at work, those that a parent started are cancelled:
    it is gone.
    """
    others = await _others(client, pools)
    for run in await _unfinished(client, pools):
        if run.state_type is StateType.SCHEDULED:
            if run.parent_task_run_id is not None and not any(others.values()):
                await client.set_flow_run_state(run.id, Cancelled(message="its parent is gone"), force=True)
        elif judge(run, _situation(run, others, (), starting=True)) is Verdict.LOST:
            await _crash(client, run, "its stack was stopped")
    for run in await _without_workers(client):
        await _crash(client, run, "its stack was stopped")


async def end_lost_runs(client: PrefectClient, pools: PoolsSection, gone: Collection[str] = ()) -> bool:
    """While workers work, end the runs that one of them has lost, or the server.

    Args:
        client: of the server.
        pools: of the stack.
        gone: workers of other hosts whose heartbeats have ended.

    Returns:
        whether no run is in doubt.
    """
    others, settled = await _others(client, pools), True
    for run in await _unfinished(client, pools):
        if run.state_type is StateType.SCHEDULED:
            continue
        verdict = judge(run, _situation(run, others, gone, starting=False))
        settled = settled and verdict is not Verdict.IN_DOUBT
        if verdict is Verdict.LOST:
            why = (
                "its host is gone"
                if run.labels.get(WORKER_LABEL) in gone
                else "its worker died, or the server"
            )
            await _crash(client, run, why)
    return settled


def _situation(
    run: FlowRun, others: Mapping[str, bool], gone: Collection[str], *, starting: bool
) -> Situation:
    return Situation(gone, others.get(run.work_pool_name or "", False), starting)


async def _others(client: PrefectClient, pools: PoolsSection) -> dict[str, bool]:
    """By pool, whether a worker of another host is online, or one that no stack named."""
    found = {}
    for pool in (pools.orchestration, pools.inference, pools.training):
        workers = await client.read_workers_for_work_pool(pool)
        online = [worker.name for worker in workers if worker.status is WorkerStatus.ONLINE]
        found[pool] = any(host_of(name) != gethostname() for name in online)
    return found


async def _unfinished(client: PrefectClient, pools: PoolsSection) -> list[FlowRun]:
    own = WorkPoolFilter(name=WorkPoolFilterName(any_=[pools.orchestration, pools.inference, pools.training]))
    return await read_flow_runs(client, FlowRunFilter(state=_UNFINISHED), own)


async def _without_workers(client: PrefectClient) -> list[FlowRun]:
    tags = FlowRunFilterTags(all_=[host_tag()])
    return await read_flow_runs(client, FlowRunFilter(state=_UNFINISHED, tags=tags))


async def _crash(client: PrefectClient, run: FlowRun, why: str) -> None:
    again = f"prefect flow-run retry {run.id}" if run.deployment_id else "run the iteration again"
    note = f"{why}; to resume: {again}"
    await client.set_flow_run_state(run.id, Crashed(message=note), force=True)
