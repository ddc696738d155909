"""`nlac/iteration`: all stages in order, each on its own deployment; `nlac/training`: iterations in a row.

A committed stage is not dispatched again; the store decides, not Prefect. So the retry button, `prefect flow-run retry`
and running again all resume at the stage that failed, even when Prefect's database is lost.
"""

import asyncio
from typing import Annotated, Any
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.tasks import Task
from pydantic import Field

from flows.deployments.dispatch import ChildFailed, again, compute_here, dispatch, dispatch_shards, may_pass
from flows.deployments.hooks import children_of, end_children
from flows.deployments.names import run_name
from flows.deployments.parameters import AlgorithmName, Iteration, RunName, Seed, resolve
from flows.deployments.reporting import name_this_run, publish_report
from flows.deployments.tracking import Tracking
from flows.stack.record import read_stack
from schemas.config import Config, FaultsSection
from schemas.load import data_root
from storage.store import Store
from tasks.engines.vllm.servers import serving
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.early_stopping import stop_reason
from tasks.pipeline.iterations import begin_iteration, finish_iteration
from tasks.pipeline.registry import STAGES, stages_of


async def run_one(
    store: Store, config: Config, stage: str, iteration: int, force: bool, tracking: Tracking, here: bool
) -> State:
    """Reuse one stage of an iteration, or dispatch it, or compute it here."""
    decision = await asyncio.to_thread(decide, store, config, stage, iteration, force=force)
    if decision.reuse and decision.committed is not None:
        decision.committed.check(content=False)
        store.adopt(decision.committed)
        tracking.reuse(decision.committed)
        return Completed(name="Reused", message="; ".join(decision.reasons))
    address = await tracking.begin(stage)
    parameters = {"run": config.run, "iteration": iteration, "force": force, "mlflow_run": address}
    try:
        if here:
            child = await compute_here(stage, parameters)
        else:
            await dispatch_shards(store, config, decision, parameters)
            child = await dispatch(stage, parameters)
    except BaseException as error:
        tracking.fail(address, str(error) or type(error).__name__)
        raise
    tracking.finish(address, stage, child)
    return Completed(message=f"flow run '{child.name}' ({child.id})")


STEPS = {
    stage: task(
        name=stage, task_run_name=stage, cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=may_pass
    )(run_one)
    for stage in STAGES
}  # fmt: skip
"""One task per stage, so that the iteration's page in the UI names the stages and shows which ones were reused."""


def retried(stage: str, faults: FaultsSection) -> Task[..., Any]:
    """The task of a stage, which runs it again as the configuration says."""
    return again(STEPS[stage], faults)


async def done_before() -> set[str]:
    """Ids and names of the children that earlier attempts of this flow run completed. A retry of a forced run does not
    force those again."""
    async with get_client() as client:
        done = await children_of(client, UUID(flow_run.id), [StateType.COMPLETED])
    return {str(child.id) for child in done} | {child.name for child in done}


def _forced(store: Store, config: Config, iteration: int, done: set[str]) -> set[str]:
    found = {stage: store.committed(config.run, stage, iteration) for stage in STAGES}
    return {stage for stage, c in found.items() if c is None or c.manifest.prefect_flow_run_id not in done}


@flow(name="nlac", persist_result=False, on_cancellation=[end_children], on_crashed=[end_children])
async def iteration(
    run: RunName = None,
    config: str | None = None,
    iteration: Iteration = None,
    force: bool = False,
    seed: Seed = None,
    algorithm: AlgorithmName = None,
    here: bool = False,
) -> State | None:
    """One iteration: rollout, Bellman targets, their correction, critic SFT, critique, refinement, policy
    distillation, evaluation. A baseline has other stages. What is committed is reused.

    Args:
        run: Name of the run, a folder under the data root. Empty: the configuration's `run`.
        config: Path of a configuration file: absolute, from where the stack was started, or from the project's
            root. Empty: the one that the iteration was begun with; for a new one, configs/default.yaml, or what a run
            of another name last used.
        iteration: Number of the iteration. Empty: the unfinished one, else the next.
        force: Compute again what is committed. It commits new attempts and overwrites nothing.
        seed: Root of every random stream. Empty: the configuration's `seed`.
        algorithm: nlac, or a baseline; a run holds one. Empty: the configuration's `algorithm`.
        here: Compute all stages in this flow's own process, on the host of its worker, instead of each on its work
            pool. The program is then started once, and a stage that runs out of memory takes the iteration with it.
    """
    store = Store(data_root())
    resolved, number = resolve(store, run, config, iteration, seed, stage_alone=False, algorithm=algorithm)
    await asyncio.to_thread(name_this_run, "iteration", resolved.run, number)
    await asyncio.to_thread(check_config, resolved, store.root)
    with store.lock(resolved.run, f"{flow_run.id} (iteration {number})"):
        resolved = await asyncio.to_thread(begin_iteration, store, resolved, number)
        forced = _forced(store, resolved, number, await done_before()) if force else set()
        tracking = Tracking(store, resolved, number)
        stack = await asyncio.to_thread(read_stack, store.root)
        owner = stack.pid if stack else None
        try:
            with serving(resolved.engines.values(), resolved.model, store.cache_dir, owner):
                for stage in stages_of(resolved, number):
                    step = retried(stage, resolved.faults)
                    await step(store, resolved, stage, number, stage in forced, tracking, here)
            finish_iteration(store, resolved.run, number)
            tracking.note(await publish_report(store, resolved.run, number))
            tracking.trace()
        except ChildFailed as failed:
            return failed.state
        finally:
            await tracking.close(finished=store.current(resolved.run, number).state == "finished")
    return None


@flow(name="nlac", persist_result=False, on_cancellation=[end_children], on_crashed=[end_children])
async def training(
    iterations: Annotated[int, Field(ge=1)],
    run: RunName = None,
    config: str | None = None,
    iteration: Iteration = None,
    force: bool = False,
    seed: Seed = None,
    algorithm: AlgorithmName = None,
) -> State | None:
    """Iterations in a row; the last one is always evaluated. Finished iterations are not repeated, so running it again
    goes on. With `evaluation.patience` it stops when validation figures have passed their peak, and says so.

    Args:
        iterations: How many, counted from `iteration`: 10 means iterations 0 to 9.
        run: Name of the run, a folder under the data root. Empty: the configuration's `run`.
        config: Path of a configuration file: absolute, from where the stack was started, or from the project's
            root. Empty: configs/default.yaml, or what a run of another name last used.
        iteration: Number of the first one. Empty: 0.
        force: Compute again what is committed. It commits new attempts and overwrites nothing.
        seed: Root of every random stream. Empty: the configuration's `seed`.
        algorithm: nlac, or a baseline; a run holds one. Empty: the configuration's `algorithm`.
    """
    store = Store(data_root())
    resolved, first = resolve(store, run, config, iteration, seed, stage_alone=False, algorithm=algorithm)
    await asyncio.to_thread(name_this_run, "training", resolved.run)
    await asyncio.to_thread(check_config, resolved, store.root)
    first = 0 if iteration is None else first
    common = {"run": resolved.run, "config": config, "seed": seed, "algorithm": algorithm}
    done = await done_before()
    try:
        for number in range(first, first + iterations):
            repeats = force and run_name("iteration", resolved.run, number) not in done
            if store.current(resolved.run, number).state == "finished" and not repeats:
                continue
            if reason := await asyncio.to_thread(stop_reason, store, resolved, number):
                get_run_logger().info(reason)
                return Completed(message=reason)
            await dispatch("iteration", {**common, "iteration": number, "force": force})
        last = first + iterations - 1
        if "evaluation" not in stages_of(resolved, last):
            # No `config`: under the one that the iteration was begun with.
            await dispatch("evaluation", {"run": resolved.run, "iteration": last})
    except ChildFailed as failed:
        return failed.state
    return None
