"""The stages as deployments, `nlac/rollout` to `nlac/evaluation`: one flow per stage, all alike.

A stage takes the run's lock (an iteration's lock counts as its own), then the GPU, and computes in
`tasks.pipeline.runner`. It leaves its progress, an MLflow run and links. A committed stage is not computed again: its
state is "Reused". One that failed by a fault that may pass is "Interrupted". With a `shard` a run computes that part of
the stage's items alone; the run without one merges.
"""

import inspect
import os
from contextlib import AbstractContextManager, nullcontext

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.flows import Flow
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.deployments.background import run_beside
from flows.deployments.parameters import Iteration, RunName, Seed, ShardName, resolve
from flows.deployments.reporting import Reporter, name_this_run, publish_result, stage_log_shown
from flows.deployments.tracking import PromptTexts, mlflow_page, run_id
from flows.stack import gpu_limit
from flows.stack.environment import STACK_MARK
from flows.stack.record import read_stack
from schemas.config import Config
from schemas.load import data_root
from schemas.manifest import OrchestrationIds
from schemas.shards import Shard
from storage.mlflow.bridge import Bridge
from storage.store import Committed, Store
from tasks.engines.vllm.servers import serving
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import Decision, decide
from tasks.pipeline.iterations import begin_iteration, frozen_config, settle
from tasks.pipeline.registry import STAGES
from tasks.pipeline.runner import carry_out
from tasks.pipeline.shards import carry_out_shard
from tasks.runtime.stage import StageInterrupted

INTERRUPTED = "Interrupted"
"""State of a stage that failed by a fault that may pass. An iteration runs it again."""

LEASE_SECONDS = 60.0
"""The shortest lease that Prefect allows. A stage whose process is killed holds the GPU for this long."""


def gpu_slot(config: Config, stage: str) -> AbstractContextManager[None]:
    """Holds this host's GPU while a stage works, where both GPU pools share one. `nlac up` makes the limit. A process
    that no stack of this host started, such as a pod, has its GPU alone."""
    if not config.pools.shared_gpu or STAGES[stage].pool == "orchestration" or STACK_MARK not in os.environ:
        return nullcontext()
    return concurrency(
        gpu_limit(), strict=True, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False
    )


def serving_here(store: Store, config: Config) -> AbstractContextManager[object]:
    """Keeps this host's servers for the stages to come. An iteration, which may be on another host, holds the servers
    of its own host alone."""
    stack = read_stack(store.root)
    if stack is None:
        return nullcontext()
    return serving(config.engines.values(), config.model, store.cache_dir, stack.pid)


def compute(
    store: Store, config: Config, decision: Decision, bridge: Bridge, mlflow_run: str | None
) -> Committed:
    """Compute and commit a stage, and publish its progress and result.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        decision: to compute the stage.
        bridge: to MLflow.
        mlflow_run: address of the MLflow run that the iteration's process writes; this process then does not even
            import MLflow. None: the stage writes a run of its own.

    Raises:
        StageFailed: it can't give a usable output; MLflow shows the run as failed.
    """
    stage, iteration = decision.key.stage, decision.key.iteration
    reporter = Reporter(store.root, config.run, iteration)
    alone = mlflow_run is None
    tracked = (
        bridge.start_stage(config.run, iteration, stage, flow_run.id, flow_run.ui_url)
        if mlflow_run is None
        else run_id(mlflow_run)
    )
    orchestration = OrchestrationIds(prefect_flow_run_id=flow_run.id, mlflow_run_id=tracked)
    try:
        with stage_log_shown(), nullcontext() if alone else serving_here(store, config):
            result = run_beside(
                lambda: carry_out(
                    store, config, decision, report=reporter.report, orchestration=orchestration
                ),
                reporter.publish,
            )
    except BaseException as error:
        if alone:
            bridge.fail_stage(tracked, str(error) or type(error).__name__)
        raise
    if alone:
        bridge.finish_stage(tracked, result.committed, config)
        mlflow_run = bridge.url(tracked) if tracked else None
    publish_result(store, result.committed, mlflow_run or None)
    return result.committed


def compute_shard(store: Store, config: Config, decision: Decision, shard: Shard) -> str:
    """Compute and commit one shard of a stage, and publish its progress; gives what was committed, in a line.

    Raises:
        StageFailed: it can't give usable rows.
    """
    reporter = Reporter(store.root, config.run, decision.key.iteration)
    alone = flow_run.parent_flow_run_id is None
    with stage_log_shown(), nullcontext() if alone else serving_here(store, config):
        made = run_beside(
            lambda: carry_out_shard(
                store, config, decision, shard, report=reporter.report, flow_run=flow_run.id
            ),
            reporter.publish,
        )
    return f"shard {shard}: {made.manifest.items} items, {made.path}"


def stage_flow(stage: str) -> "Flow[..., State]":
    """The flow of one stage."""

    def body(
        run: RunName = None,
        config: str | None = None,
        iteration: Iteration = None,
        force: bool = False,
        seed: Seed = None,
        mlflow_run: str | None = None,
        shard: ShardName = None,
    ) -> State:
        """One stage of one iteration.

        Args:
            run: Name of the run, a folder under the data root. Empty: the configuration's `run`.
            config: Path of a configuration file: absolute, from where the stack was started, or from the project's
                root. Empty: the one that the iteration was begun with; for a new one, configs/default.yaml, or what a
                run of another name last used.
            iteration: Number of the iteration. Empty: the unfinished one, else the last one.
            force: Compute again what is committed. It commits a new attempt and overwrites nothing.
            seed: Root of every random stream. Empty: the configuration's `seed`.
            mlflow_run: Address of the MLflow run that the iteration writes for the stage. Empty: it makes its own.
            shard: The part of the stage's items to compute, for instance 3/8. Empty: the whole stage, from the shards
                that are there and what is missing.
        """
        part = Shard.parse(shard) if shard is not None else None
        store = Store(data_root())
        resolved, number = resolve(store, run, config, iteration, seed, stage_alone=True)
        name_this_run(stage, resolved.run, number, part)
        parent = flow_run.parent_flow_run_id
        if parent is None:
            check_config(resolved, store.root)
        # In a mirror that the iteration does not hold, its stages and shards hold the run for it, side by side.
        holder = f"{parent or flow_run.id} ({stage}, iteration {number})"
        with store.lock(resolved.run, holder, within=parent):
            # A finished iteration keeps its configuration, but for one stage that is forced under another.
            another = config is not None and force and frozen_config(store, resolved.run, number) is not None
            if parent is None and not another:
                resolved = begin_iteration(store, resolved, number)
            resolved = settle(store, resolved, number)
            bridge = Bridge(store.root, PromptTexts(resolved), mlflow_page())
            decision = decide(store, resolved, stage, number, force=force, frozen=not another)
            if decision.reuse and decision.committed is not None:
                store.adopt(decision.committed)
                bridge.ensure_logged(decision.committed, resolved)
                return Completed(name="Reused", message="; ".join(decision.reasons))
            try:
                with gpu_slot(resolved, stage):
                    if part is not None:
                        return Completed(message=compute_shard(store, resolved, decision, part))
                    committed = compute(store, resolved, decision, bridge, mlflow_run)
            except StageInterrupted as fault:
                return Failed(name=INTERRUPTED, message=str(fault))
        return Completed(message=f"committed {committed.path}")

    body.__name__ = stage.replace("-", "_")
    module = inspect.getmodule(STAGES[stage].run)
    description = module.__doc__ if module else None
    made: Flow[..., State] = flow(name="nlac", description=description, persist_result=False)(body)
    return made


def __getattr__(name: str) -> "Flow[..., State]":
    """The flow of a stage by its entrypoint's name: `critic_sft` is the flow of stage critic-sft."""
    stage = name.replace("_", "-")
    if stage not in STAGES:
        raise AttributeError(f"module {__name__} has no attribute {name}, and no stage is called {stage}")
    return stage_flow(stage)
