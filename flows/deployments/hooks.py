"""The hook of a flow run that is cancelled or crashes: the runs it started end with it.

Prefect's server cancels the children of cancelled parents after some seconds, and does nothing for crashed ones. The
hook runs in the worker that ran the parent, after the parent's process is gone and before the parent is marked as
ended. So once a run shows as Cancelled, its children have ended, and their locks and the GPU are free.
"""

import asyncio
import time
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.flows import Flow
from prefect.states import Cancelled, Cancelling

from flows.stack.api import read_flow_runs

PATIENCE_SECONDS = 60.0
_UNFINISHED = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]


async def children_of(client: PrefectClient, parent: UUID, states: list[StateType]) -> list[FlowRun]:
    """Flow runs that a flow run started and that are in one of these states."""
    wanted = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)),
    )
    return await read_flow_runs(client, wanted)


async def end_children(flow: "Flow[..., object]", flow_run: FlowRun, state: State) -> None:
    """Cancel the runs that a cancelled or crashed run started, and wait at most PATIENCE_SECONDS for their end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with get_client() as client:
        while time.monotonic() < deadline:
            children = await children_of(client, flow_run.id, _UNFINISHED)
            if not children:
                return
            note = f"its parent '{flow_run.name}' is {(state.name or 'ended').lower()}"
            for child in children:
                if child.deployment_id is None:  # it ran in the process of its parent
                    await client.set_flow_run_state(child.id, Cancelled(message=note), force=True)
                elif child.state_type is not StateType.CANCELLING:
                    await client.set_flow_run_state(child.id, Cancelling(message=note))
            await asyncio.sleep(0.5)
