"""Running stages: what a stage's output depends on, whether it is there already, computing and committing it.

The same functions serve Prefect's flows and plain Python: `run_iteration` runs everything in this process.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from schemas.config import Algorithm, Config
from schemas.manifest import Lineage, folder_name
from storage.store import Committed, Store, StoreError
from tasks import (
    bellman_targets,
    cot_correction,
    critic_sft,
    critique,
    evaluation,
    policy_distillation,
    refinement,
    replay_draw,
    rollout,
    warm_start,
)
from tasks.commit import commit_output
from tasks.context import StageContext
from tasks.determinants import determine, differences, fingerprint_of
from tasks.engines.base import EngineDied
from tasks.engines.cache import RequestCache
from tasks.engines.servers import put_to_sleep
from tasks.environments.logged import NAME as LOGGED
from tasks.progress import Progress, Report
from tasks.stage import Inputs, Resolver, Stage, StageFailed

STAGES: dict[str, Stage] = {
    module.STAGE.name: module.STAGE
    for module in (
        warm_start, rollout, replay_draw, bellman_targets, cot_correction, critic_sft, critique, refinement,
        policy_distillation, evaluation,
    )
}  # fmt: skip

_ACTOR_CRITIC = (
    "rollout", "bellman-targets", "cot-correction", "critic-sft", "critique", "refinement", "policy-distillation",
    "evaluation",
)  # fmt: skip

ALGORITHMS: dict[Algorithm, tuple[str, ...]] = {
    "nlac": _ACTOR_CRITIC,
    "nlql": _ACTOR_CRITIC,
    "self_distillation": (
        "rollout", "replay-draw", "critique", "refinement", "policy-distillation", "evaluation",
    ),
    "rft": ("rollout", "policy-distillation", "evaluation"),
    "react": ("evaluation",),
}  # fmt: skip
"""The stages of each algorithm; what they read then is in their own `inputs`."""

IMPROVEMENT = {"critique", "refinement", "policy-distillation"}


@dataclass(frozen=True)
class Decision:
    """Whether a stage's committed output still holds.

    Attributes:
        reuse: it does.
        reasons: why it does not, or that it does; one line each.
        fingerprint: of what the stage would compute now.
        committed: what is there with that fingerprint, or what is current.
    """

    reuse: bool
    reasons: tuple[str, ...]
    fingerprint: str
    committed: Committed | None


@dataclass(frozen=True)
class StageResult:
    """A stage that is committed, computed now or before."""

    committed: Committed
    reused: bool
    reasons: tuple[str, ...]


def stages_of(config: Config, iteration: int) -> list[str]:
    """The stages of an iteration, in order: before iteration 0 a warm start, if one is configured; then those of the
    algorithm, rollout where anything is played, improvement from its first iteration on, evaluation every
    `evaluation.every`-th one."""
    left_out = {"rollout"} if config.rollout.source == "none" else set()
    if (iteration + 1) % config.evaluation.every:
        left_out.add("evaluation")
    if iteration < config.improvement.from_iteration:
        left_out |= IMPROVEMENT
    first = [warm_start.STAGE.name] if config.warm_start.file and iteration == 0 else []
    return first + [name for name in ALGORITHMS[config.algorithm] if name not in left_out]


def is_import(rollout: Committed) -> bool:
    """Whether a committed rollout was imported (`tasks.logs`), not played."""
    return LOGGED in rollout.manifest.determinants.config


def _imported(store: Store, run: str, iteration: int) -> bool:
    """Whether an iteration's rollout is an import; one whose manifest is broken can't be told from a played one."""
    try:
        before = store.committed(run, "rollout", iteration)
    except StoreError:
        return False
    return before is not None and is_import(before)


def engine_cache(store: Store) -> Path:
    """Where engines keep what is theirs: caches, and the servers they started."""
    return store.root / ".cache"


def resolve_inputs(store: Store, config: Config, stage: str, iteration: int) -> Inputs:
    """A stage's inputs, as committed.

    Raises:
        StageFailed: one of them is not committed yet; it is named. Or the stage is none of the algorithm's.
    """
    if stage == warm_start.STAGE.name:
        warm_start.refuse_unfit(config, iteration)
    elif stage not in ALGORITHMS[config.algorithm]:
        raise StageFailed(
            f"{stage} is no stage of algorithm {config.algorithm} (its stages: "
            f"{', '.join(ALGORITHMS[config.algorithm])}); run one of those, or another run with another algorithm"
        )

    if stage == "rollout" and config.rollout.source == "none":
        raise StageFailed(
            "rollout: none, so there is no stage rollout; episodes come from `nlac import` (or set rollout.source to "
            "environment)"
        )
    if stage == "rollout" and _imported(store, config.run, iteration):
        raise StageFailed(
            f"iteration {iteration} of run '{config.run}' holds imported episodes, which playing would replace; train "
            "on them with a configuration that has rollout: none (configs/logged.yaml), or play in another run"
        )

    def committed(needed: str, at: int) -> Committed:
        found = store.committed(config.run, needed, at)
        if found is None:
            raise StageFailed(
                f"{stage} of iteration {iteration} needs {needed} of iteration {at} of run '{config.run}', which is "
                f"not committed; run it first: prefect deployment run nlac/{needed} -p iteration={at}"
            )
        return found

    def rollouts_of(run: str) -> list[Committed]:
        found = (store.committed(run, "rollout", number) for number in store.iterations(run))
        return [made for made in found if made is not None]

    return STAGES[stage].inputs(Resolver(config, iteration, committed, rollouts_of))


def decide(
    store: Store, config: Config, stage: str, iteration: int, *, force: bool = False, frozen: bool = True
) -> Decision:
    """Whether to reuse or to compute a stage.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        stage: its name.
        iteration: its iteration.
        force: compute whatever is there.
        frozen: a committed stage keeps the configuration it was computed with; differences of `config`
            don't count.

    Raises:
        StageFailed: an input is not committed yet.
        StoreError: `current.json` or the committed manifest is broken.
    """
    inputs = resolve_inputs(store, config, stage, iteration)
    now = determine(STAGES[stage], config, iteration, inputs)
    try:
        current = store.committed(config.run, stage, iteration)
    except StoreError:
        if not force:
            raise
        current = None
    if current is not None and frozen:
        now = now.model_copy(update={"config": current.manifest.determinants.config})
    fingerprint = fingerprint_of(now)
    if force:
        return Decision(False, ("force: recomputed whatever is there",), fingerprint, current)
    if current is None:
        found = store.find(config.run, stage, iteration, fingerprint)
        if found is not None:
            return Decision(True, ("committed before, and nothing changed",), fingerprint, found)
        return Decision(False, ("not committed yet",), fingerprint, None)
    if current.manifest.fingerprint == fingerprint:
        return Decision(True, ("nothing it depends on has changed",), fingerprint, current)
    changed = tuple(differences(current.manifest.determinants, now))
    found = store.find(config.run, stage, iteration, fingerprint)
    if found is not None:
        return Decision(True, ("an earlier output fits again", *changed), fingerprint, found)
    return Decision(False, changed, fingerprint, current)


async def run_stage(
    store: Store,
    config: Config,
    stage: str,
    iteration: int,
    *,
    force: bool = False,
    frozen: bool = True,
    report: Report | None = None,
    lineage: Lineage | None = None,
) -> StageResult:
    """Reuse a stage, or compute and commit it. The caller holds the run's lock.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        stage: its name.
        iteration: its iteration.
        force: compute whatever is there, as a new attempt; what lies downstream is marked stale.
        frozen: see decide.
        report: told of progress.
        lineage: ids of the orchestration runs, for the manifest.

    Raises:
        StageFailed: it can't give a usable output; nothing is committed, finished requests are kept.
        StoreError: an input file is missing or damaged; it is named.
    """
    decision = decide(store, config, stage, iteration, force=force, frozen=frozen)
    if decision.reuse and decision.committed is not None:
        decision.committed.check(content=False)
        store.adopt(decision.committed)
        return StageResult(decision.committed, True, decision.reasons)
    spec = STAGES[stage]
    inputs = resolve_inputs(store, config, stage, iteration)
    for part in {c.path: c for group in inputs.tables.values() for c in group}.values():
        part.check(content=True)
    determinants = determine(spec, config, iteration, inputs)
    fingerprint = fingerprint_of(determinants)
    attempt = store.next_attempt(config.run, stage, iteration, fingerprint)
    name = folder_name(fingerprint, attempt)
    started, clock = datetime.now(UTC), time.monotonic()
    with store.staging(config.run) as workdir, _stage_log(workdir / "stage.log") as log:
        cache = (
            RequestCache(store.requests_journal(config.run, stage, iteration, name)) if spec.roles else None
        )
        ctx = StageContext(
            config=config,
            stage=stage,
            iteration=iteration,
            inputs=inputs,
            workdir=workdir,
            cache_dir=engine_cache(store),
            fingerprint=name,
            checkpoint=store.checkpoint(config.run, stage, iteration, name),
            progress=Progress(stage, report),
            log=log,
            cache=cache,
        )
        if spec.pool == "training" and config.pools.shared_gpu:
            for reason in await asyncio.to_thread(put_to_sleep, ctx.cache_dir):
                log.warning("not put to sleep: %s", reason)
        try:
            output = await spec.run(ctx, inputs)
        except* EngineDied as died:
            raise StageFailed(f"{stage}: {next(_leaves(died))}") from died
        finally:
            await ctx.close()
            if cache:
                cache.close()
        committed = commit_output(
            store,
            spec,
            output,
            determinants=determinants,
            fingerprint=fingerprint,
            attempt=attempt,
            workdir=workdir,
            tokens=ctx.tokens,
            started=started,
            seconds=time.monotonic() - clock,
            lineage=lineage or Lineage(),
        )
    if cache:
        cache.close(remove=True)
    store.checkpoint(config.run, stage, iteration, name).unlink(missing_ok=True)
    if decision.committed is not None:
        mark_downstream_stale(store, config.run, stage, iteration)
    return StageResult(committed, False, decision.reasons)


def _leaves(group: BaseExceptionGroup[EngineDied]) -> Iterator[BaseException]:
    """The exceptions in a group of groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def mark_downstream_stale(store: Store, run: str, stage: str, iteration: int) -> None:
    """Mark what may depend on a recomputed stage stale: later stages, and later iterations. The next run
    of each checks it, and clears the mark where nothing changed."""
    names = list(STAGES)
    for number in (n for n in store.iterations(run) if n >= iteration):
        later = set(names[names.index(stage) + 1 :] if number == iteration else names)
        current = store.current(run, number)
        stages = {
            name: entry.model_copy(update={"stale": True}) if name in later else entry
            for name, entry in current.stages.items()
        }
        store.set_current(run, number, current.model_copy(update={"stages": stages}))


@contextmanager
def _stage_log(path: Path) -> Iterator[logging.Logger]:
    """A logger that also writes the stage's own file."""
    log = logging.getLogger(f"nlac.stage.{os.getpid()}")
    log.setLevel(logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield log
    finally:
        log.removeHandler(handler)
        handler.close()
