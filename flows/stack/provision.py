"""Prepare a Prefect server: work pools, the GPU's limit, and the end of runs that an earlier stack left.

The supervisor runs it as `python -m flows.stack.provision` before any worker starts, against the server in
PREFECT_API_URL. With `--lost` it only ends lost runs: after a worker or the server has died, while others work on.
"""

import argparse
import asyncio
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed
from prefect.workers.process import ProcessWorker

from flows.stack import GPU_LIMIT
from schemas.config import PoolsSection
from schemas.load import load_config

STARTING_SECONDS = 60.0
"""A worker that lives notes the process of a run that it has taken before that."""


async def make_pools(client: PrefectClient, pools: PoolsSection) -> None:
    """Create the three work pools. A GPU pool runs one stage at a time; the limit makes it one for both together."""
    for name, limit in ((pools.orchestration, None), (pools.inference, 1), (pools.training, 1)):
        try:
            await client.read_work_pool(name)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            await client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template)
            )
        await client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))
    await client.upsert_global_concurrency_limit_by_name(GPU_LIMIT, limit=1)
    # No stage runs yet, so a slot that is taken belonged to an earlier stack.
    await client.update_global_concurrency_limit(GPU_LIMIT, GlobalConcurrencyLimitUpdate(active_slots=0))


async def end_lost_runs(client: PrefectClient, pools: PoolsSection) -> None:
    """End flow runs whose processes ended with an earlier stack; they would fill the pools' limits for ever.

    Runs that had not started stay scheduled, unless their parent is among the lost ones. Other people's runs of a
    shared server stay as they are: those of other pools or other hosts, and those whose process lives.
    """
    note = "its stack was stopped"
    for run in filter(_is_lost, await _unfinished(client, pools)):
        if run.state_type is not StateType.SCHEDULED:
            await _crash(client, run, note)
        elif run.parent_task_run_id is not None:
            await client.set_flow_run_state(run.id, Cancelled(message="its parent is gone"), force=True)


async def settle_runs(client: PrefectClient, pools: PoolsSection) -> bool:
    """End flow runs whose processes are gone and whose end nobody could report: their worker had died, or the server.

    Prefect would show them as running for ever. Whoever waits for them would wait as long, and their pool would start
    nothing else.

    Returns:
        whether no run is in doubt. One that a worker has just taken has no process yet; it is known to be lost later.
    """
    settled = True
    for run in filter(_is_lost, await _unfinished(client, pools)):
        if run.state_type is StateType.SCHEDULED or run.state is None:
            continue
        age = (datetime.now(UTC) - run.state.timestamp).total_seconds()
        if run.infrastructure_pid or age > STARTING_SECONDS:
            await _crash(client, run, "its worker died, or the server")
        else:
            settled = False
    return settled


async def _unfinished(client: PrefectClient, pools: PoolsSection) -> list[FlowRun]:
    own = WorkPoolFilter(name=WorkPoolFilterName(any_=[pools.orchestration, pools.inference, pools.training]))
    alive = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.SCHEDULED]
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=alive))
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=state), work_pool_filter=own, limit=200
    )


async def _crash(client: PrefectClient, run: FlowRun, why: str) -> None:
    note = f"{why}; to resume: prefect flow-run retry {run.id}"
    await client.set_flow_run_state(run.id, Crashed(message=note), force=True)


def _is_lost(run: FlowRun) -> bool:
    """Whether no process of this host runs it, nor any of another host.

    A process worker notes 'pid' (Prefect 3.7) or 'host:pid' (before), and tells the process which run it is: the pid
    may be another process's by now. Without a host it is this one, since the stack's server listens on loopback alone.
    """
    host, _, pid = (run.infrastructure_pid or "").rpartition(":")
    if not pid or host not in ("", socket.gethostname()):
        return not pid
    try:
        return bool(psutil.Process(int(pid)).environ().get("PREFECT__FLOW_RUN_ID") != str(run.id))
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False  # another user's


async def provision(config: Path | None) -> None:
    """Make the server ready for workers of this configuration's pools."""
    async with get_client() as client:
        pools = load_config(config).pools
        await make_pools(client, pools)
        await end_lost_runs(client, pools)


async def settle(config: Path | None) -> bool:
    """As `settle_runs`, for this configuration's pools."""
    async with get_client() as client:
        return await settle_runs(client, load_config(config).pools)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--lost", action="store_true", help="ends with 1 while a run is in doubt")
    given = parser.parse_args()
    if given.lost:
        sys.exit(not asyncio.run(settle(given.config)))
    asyncio.run(provision(given.config))
