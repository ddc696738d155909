"""Prepare a Prefect server: work pools, the GPU's limit, and the end of runs that an earlier stack left.

The supervisor runs it as `python -m flows.stack.provision` before any worker starts, against the server in
PREFECT_API_URL.
"""

import argparse
import asyncio
import socket
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
    own = WorkPoolFilter(name=WorkPoolFilterName(any_=[pools.orchestration, pools.inference, pools.training]))
    alive = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.SCHEDULED]
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=alive))
    found = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=state), work_pool_filter=own, limit=200
    )
    for run in filter(_is_lost, found):
        if run.state_type is not StateType.SCHEDULED:
            note = f"its stack was stopped; to resume: prefect flow-run retry {run.id}"
            await client.set_flow_run_state(run.id, Crashed(message=note), force=True)
        elif run.parent_task_run_id is not None:
            await client.set_flow_run_state(run.id, Cancelled(message="its parent is gone"), force=True)


def _is_lost(run: FlowRun) -> bool:
    """Whether no process of this host runs it, nor any of another host.

    A process worker notes 'host:pid', and tells the process which run it is: the pid may be another process's by now.
    """
    host, _, pid = (run.infrastructure_pid or "").rpartition(":")
    if not pid or host != socket.gethostname():
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    asyncio.run(provision(parser.parse_args().config))
