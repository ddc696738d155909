"""Child flow runs of an iteration: dispatched, waited for, and run again where a fault may pass.

A stage whose items are dealt out has a child for each shard that is not committed, and then one that merges. A stage
may also be a child in the iteration's own process.
"""

import asyncio
from collections.abc import Mapping
from textwrap import shorten
from typing import Any, cast
from uuid import UUID

from prefect import tags, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.deployments.flow_runs import arun_deployment
from prefect.runtime import deployment as running
from prefect.runtime import flow_run, task_run
from prefect.states import Failed
from prefect.tasks import Task, exponential_backoff

from flows.deployments.names import run_name, run_tags
from flows.deployments.stages import INTERRUPTED, stage_flow
from schemas.config import Config, FaultsSection
from schemas.shards import Shard
from storage.store import Store
from tasks.pipeline.decision import Decision
from tasks.pipeline.shards import shards_of
from tasks.runtime.stage import StageFailed

POLL_SECONDS = 0.5
NAME_CHARS = 160  # of a reason in a state's name


class ChildFailed(StageFailed):
    """A child flow run did not complete; `interrupted` if by a fault that may pass, or because its process died."""

    def __init__(
        self, message: str, deployment: str = "", reason: str = "", *, interrupted: bool = False
    ) -> None:
        super().__init__(message)
        self.deployment, self.reason, self.interrupted = deployment, reason, interrupted

    @property
    def state(self) -> State:
        """The end of the parent. Its name says which child failed and why, because `prefect deployment run --watch`
        shows the name alone."""
        why = self.reason.removeprefix("Flow run encountered an exception: ")
        why = shorten(why, NAME_CHARS, placeholder=" ...")
        return Failed(name=f"Failed at {self.deployment}: {why}", message=str(self))


async def dispatch(deployment: str, parameters: dict[str, Any]) -> FlowRun:
    """Run a deployment as a child and wait for it.

    Args:
        deployment: its name, without the flow's.
        parameters: its parameters, with `run` and `iteration`.

    Raises:
        ChildFailed: it did not complete; the message names it and the commands that retry it.
    """
    run, number = parameters["run"], parameters["iteration"]
    shard = Shard.parse(parameters["shard"]) if "shard" in parameters else None
    name = run_name(deployment, run, number, shard)
    child = await arun_deployment(
        f"nlac/{deployment}",
        parameters=parameters,
        flow_run_name=name,
        tags=run_tags(deployment, run, number, shard),
        poll_interval=POLL_SECONDS,
        idempotency_key=f"{flow_run.id}-{flow_run.run_count}-{task_run.id}-{task_run.run_count}-{name}",
    )
    return _completed(child, deployment, parameters)


async def compute_here(stage: str, parameters: dict[str, Any]) -> FlowRun:
    """Run a stage's flow as a child in this thread, and so block its event loop: Prefect cancels a run by raising in
    the main thread, and that must reach the stage (`flows.deployments.background`).

    Args:
        stage: its name.
        parameters: of its deployment, with `run` and `iteration`.

    Raises:
        ChildFailed: as `dispatch`.
    """
    run, number = parameters["run"], parameters["iteration"]
    here = stage_flow(stage).with_options(flow_run_name=run_name(stage, run, number))
    with tags(*run_tags(stage, run, number)):
        state: State = here(**parameters, return_state=True)
    async with get_client() as client:
        child = await client.read_flow_run(cast(UUID, state.state_details.flow_run_id))
    return _completed(child, stage, parameters)


def _completed(child: FlowRun, deployment: str, parameters: Mapping[str, Any]) -> FlowRun:
    """The child, if it completed."""
    if child.state is not None and child.state.is_completed():
        return child
    state = child.state.type.value.title() if child.state else "unknown"
    reason = (child.state.message if child.state else None) or "no reason given"
    run, number = parameters["run"], parameters["iteration"]
    # Prefect retries what a worker can start.
    retry = f"To go on from there: prefect flow-run retry {flow_run.id}\n" if running.id else ""
    raise ChildFailed(
        f"{child.name}: {deployment} ended {state} in flow run '{child.name}' ({child.id}): {reason}\n"
        f"{retry}To run it alone: prefect deployment run nlac/{deployment} -p iteration={number} -p run={run}",
        deployment,
        reason,
        interrupted=child.state is not None and (child.state.name == INTERRUPTED or child.state.is_crashed()),
    )


def may_pass(step: Task[..., Any], run: TaskRun, state: State) -> bool:
    """Whether a stage failed by a fault that may pass: Prefect then runs it again."""
    return isinstance(state.data, ChildFailed) and state.data.interrupted


async def run_shard(stage: str, shard: str, parameters: Mapping[str, Any]) -> None:
    """Dispatch one shard of a stage."""
    await dispatch(stage, {**parameters, "shard": shard})


SHARD = task(
    name="shard", task_run_name="{stage} {shard}", cache_policy=NO_CACHE, persist_result=False,
    retry_condition_fn=may_pass,
)(run_shard)  # fmt: skip
"""One task per shard, which is run again by itself."""


async def dispatch_shards(
    store: Store, config: Config, decision: Decision, parameters: Mapping[str, Any]
) -> None:
    """Dispatch the shards of a stage that are not committed, all at once, and wait for the last one. Where the stage's
    items are not dealt out it does nothing.

    Raises:
        ChildFailed: one did not complete, also when run again; the others are kept.
    """
    shards = shards_of(store, config, decision)
    if shards is None:
        return
    stage, missing = decision.key.stage, await asyncio.to_thread(shards.missing)
    step = again(SHARD, config.faults)
    asked = {name: parameters[name] for name in ("run", "iteration", "force")}
    ended = await asyncio.gather(
        *(step(stage, str(shard), asked) for shard in missing), return_exceptions=True
    )
    for failed in ended:
        if isinstance(failed, ChildFailed):  # it was run again already, so the stage is not
            raise ChildFailed(str(failed), failed.deployment, failed.reason)
        if isinstance(failed, BaseException):
            raise failed


def again(step: Task[..., Any], faults: FaultsSection) -> Task[..., Any]:
    """The same task, run again as the configuration says."""
    return step.with_options(
        retries=faults.retries, retry_delay_seconds=exponential_backoff(faults.retry_seconds)
    )
