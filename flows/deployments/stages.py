"""The stages as deployments: `nlac/rollout` ... `nlac/evaluation`, one flow function each, all alike.

A stage takes the run's lock (its iteration's counts as its own), then the GPU, computes in
`tasks.pipeline.runner`, and leaves its progress, an MLflow run and links. What is committed already is not
computed again: state "Reused".
"""

import inspect
from contextlib import AbstractContextManager, nullcontext

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.flows import Flow
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.deployments.background import run_beside
from flows.deployments.parameters import Iteration, RunName, Seed, resolve
from flows.deployments.reporting import Reporter, prompt_texts, publish_result
from flows.deployments.tracking import run_id
from flows.stack.provision import GPU_LIMIT
from schemas.config import Config
from schemas.load import data_root
from schemas.manifest import Lineage
from storage.mlflow.bridge import Bridge
from storage.store import Committed, Store
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import begin_iteration, frozen_config
from tasks.pipeline.registry import STAGES, decide
from tasks.pipeline.runner import run_stage

LEASE_SECONDS = 60.0
"""The shortest lease Prefect allows: a stage whose process is killed holds the GPU this much longer."""


def gpu_slot(config: Config, stage: str) -> AbstractContextManager[None]:
    """Holds the GPU while a stage works, where the GPU pools share one. The limit must exist (`nlac up`
    makes it)."""
    if not config.pools.shared_gpu or STAGES[stage].pool == "orchestration":
        return nullcontext()
    return concurrency(
        GPU_LIMIT, strict=True, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False
    )


def compute(
    store: Store,
    config: Config,
    stage: str,
    iteration: int,
    force: bool,
    frozen: bool,
    mlflow_run: str | None,
) -> Committed:
    """Compute and commit a stage, with everything that people see of it. Where the iteration's process keeps the
    stage's MLflow run (`mlflow_run`, its address), MLflow is not even imported here.

    Raises:
        StageFailed: it can't give a usable output; MLflow shows the run as failed.
    """
    bridge = Bridge(store.root)
    reporter = Reporter(store.root, config.run, iteration)
    tracking = (
        bridge.start_stage(config.run, iteration, stage, flow_run.id, flow_run.ui_url)
        if mlflow_run is None
        else run_id(mlflow_run)
    )
    lineage = Lineage(prefect_flow_run_id=flow_run.id, mlflow_run_id=tracking)
    try:
        result = run_beside(
            lambda: run_stage(
                store,
                config,
                stage,
                iteration,
                force=force,
                frozen=frozen,
                report=reporter.report,
                lineage=lineage,
            ),
            reporter.publish,
        )
    except BaseException as error:
        if mlflow_run is None:
            bridge.fail_stage(tracking, str(error) or type(error).__name__)
        raise
    if mlflow_run is None:
        bridge.finish_stage(tracking, result.committed, config, prompt_texts(config, result.committed))
        mlflow_run = bridge.url(tracking) if tracking else None
    publish_result(result.committed, mlflow_run or None)
    return result.committed


def stage_flow(stage: str) -> "Flow[..., State]":
    """The flow of one stage."""

    def body(
        run: RunName = None,
        config: str | None = None,
        iteration: Iteration = None,
        force: bool = False,
        seed: Seed = None,
        mlflow_run: str | None = None,
    ) -> State:
        """One stage of one iteration.

        Args:
            run: Name of the run, a folder under the data root. Empty: the configuration's `run`.
            config: Path of a configuration file, absolute or from the project's root. Empty: the one that the
                iteration was begun with; for a new one, configs/default.yaml, or what a run of another name
                last used.
            iteration: Number of the iteration. Empty: the unfinished one, else the last one.
            force: Compute again what is committed already; commits a new attempt, overwrites nothing.
            seed: Root of every random stream. Empty: the configuration's `seed`.
            mlflow_run: Address of the MLflow run that the iteration keeps for the stage. Empty: it makes its own.
        """
        store = Store(data_root())
        resolved, number = resolve(store, run, config, iteration, seed, stage_alone=True)
        parent = flow_run.parent_flow_run_id
        if parent is None:
            check_config(resolved, store.root)
        with store.lock(resolved.run, f"{flow_run.id} ({stage}, iteration {number})", within=parent):
            # A finished iteration keeps its configuration, but for one stage that is forced under another.
            another = config is not None and force and frozen_config(store, resolved.run, number) is not None
            if parent is None and not another:
                resolved = begin_iteration(store, resolved, number)
            decision = decide(store, resolved, stage, number, force=force, frozen=not another)
            if decision.reuse and decision.committed is not None:
                store.adopt(decision.committed)
                texts = prompt_texts(resolved, decision.committed)
                Bridge(store.root).ensure_logged(decision.committed, resolved, texts)
                return Completed(name="Reused", message="; ".join(decision.reasons))
            with gpu_slot(resolved, stage):
                committed = compute(store, resolved, stage, number, force, not another, mlflow_run)
        return Completed(message=f"committed {committed.path}")

    body.__name__ = stage.replace("-", "_")
    module = inspect.getmodule(STAGES[stage].run)
    description = module.__doc__ if module else None
    made: Flow[..., State] = flow(name="nlac", description=description, persist_result=False)(body)
    return made


warm_start = stage_flow("warm-start")
rollout = stage_flow("rollout")
replay_draw = stage_flow("replay-draw")
bellman_targets = stage_flow("bellman-targets")
cot_correction = stage_flow("cot-correction")
critic_sft = stage_flow("critic-sft")
critique = stage_flow("critique")
refinement = stage_flow("refinement")
policy_distillation = stage_flow("policy-distillation")
evaluation = stage_flow("evaluation")
