"""Where runs stand, from what they leave while they work (`flows.cli.left_behind`).

Nothing is asked of a running process, and nothing is locked, so that looking disturbs nobody. Prefect's server, where
it is up, adds its own runs.
"""

import time
from collections import Counter
from collections.abc import Iterable

from flows.cli.left_behind import LeftBehind
from flows.cli.shards import ShardsStanding, shards_standing
from flows.cli.standing_models import Failure, FlowRun, RunStanding, RunState, StageStanding, StageState
from flows.deployments.names import run_name
from schemas.config import Config
from schemas.manifest import Manifest, RoleCost, StageKey
from storage.store import Store
from tasks.pipeline.iterations import frozen_config
from tasks.pipeline.registry import STAGES, stages_of


def standing(
    store: Store,
    run: str,
    flow_runs: list[FlowRun],
    failed: list[FlowRun],
    go_on: str,
    now: float | None = None,
) -> RunStanding | None:
    """Where a run stands.

    Args:
        store: the artifact store.
        run: the run.
        flow_runs: of Prefect, not over.
        failed: failed ones, the newest first.
        go_on: the command that goes on with an unfinished iteration.
        now: seconds since the epoch.

    Returns:
        None where no iteration was begun.
    """
    numbers = [n for n in store.iterations(run) if frozen_config(store, run, n) is not None]
    if not numbers:
        return None
    iteration, now = numbers[-1], time.time() if now is None else now
    config = frozen_config(store, run, iteration)
    assert config is not None
    found, names = LeftBehind(store, run, iteration, now), stages_of(config, iteration)
    holder = store.living_holder(run) or _computed_elsewhere(store, run, iteration, flow_runs)
    over = store.current(run, iteration).state == "finished"
    state: RunState = "finished" if over else "running" if holder else "stopped"
    manifests = {name: manifest for name in names if (manifest := found.manifest(name))}
    attempts = {name: found.failures(name) for name in names if name not in manifests}
    first = next(iter(attempts), None)
    at = found.progress(first) if first and state == "running" else None
    stages = []
    for name in names:
        if name in manifests:
            stages.append(StageStanding(stage=name, state="committed", seconds=manifests[name].seconds))
        elif name == first and at is not None:
            stages.append(
                StageStanding(
                    stage=name,
                    state="running",
                    seconds=at.seconds,
                    seconds_left=at.remaining_seconds,
                    progress=at,
                    shards=_shards(found, config, name, flow_runs),
                )
            )
        else:
            failing = state == "stopped" and attempts[name]
            now_is: StageState = "running" if state == "running" else "failed" if failing else "waiting"
            before = found.seconds_before(name)
            shown: StageState = now_is if name == first else "waiting"
            shards = _shards(found, config, name, flow_runs) if shown == "running" else None
            stages.append(StageStanding(stage=name, state=shown, seconds_left=before, shards=shards))
    left = 0.0 if over else _sum(stage.seconds_left for stage in stages if stage.state != "committed")
    wanted = _last_wanted(run, flow_runs)
    costs = [manifest.roles for manifest in manifests.values()] + ([dict(at.roles)] if at else [])
    return RunStanding(
        run=run,
        iteration=iteration,
        state=state,
        holder=holder,
        last_iteration=wanted,
        stages=stages,
        seconds_left=left,
        run_seconds_left=_run_left(found, wanted, left, stages),
        loss=at.loss if at else None,
        roles={role: sum((c[role] for c in costs if role in c), RoleCost()) for c in costs for role in c},
        rows=_failed_rows(manifests),
        faults=dict(at.faults) if at else {},
        attempts=dict(Counter(kind for failed_ones in attempts.values() for kind, _ in failed_ones)),
        still_seconds=found.still(names),
        failure=_failure(found, first, failed, go_on) if state == "stopped" else None,
    )


def _computed_elsewhere(store: Store, run: str, iteration: int, flow_runs: list[FlowRun]) -> str | None:
    """Prefect's run that computes the iteration, where no process of this machine holds the run's lock or died with it:
    it is held in another host's mirror."""
    if store.lock_note(run).exists():
        return None
    name = run_name("iteration", run, iteration)
    return next((f"flow run {name}" for one in flow_runs if one.name == name and one.start_time), None)


def _shards(found: LeftBehind, config: Config, stage: str, flow_runs: list[FlowRun]) -> ShardsStanding | None:
    """The shards of a running stage whose items are dealt out."""
    if config.pools.shards == 1 or STAGES[stage].item is None:
        return None
    key = StageKey(stage=stage, run=config.run, iteration=found.iteration)
    started = {one.name: one.start_time.timestamp() for one in flow_runs if one.start_time is not None}
    return shards_standing(found.store, key, config.pools.shards, started, found.now)


def _failure(found: LeftBehind, stage: str | None, failed: list[FlowRun], go_on: str) -> Failure:
    """Why an iteration that nobody computes is unfinished."""
    said = found.failures(stage) if stage else []
    if stage is None:
        reason = "every stage is committed, and the iteration was not closed: it was stopped or killed"
    elif said:
        reason = f"{said[-1][0]}: {said[-1][1]} (its log: {found.log(stage)})"
    else:
        reason = "no attempt left an error: it was stopped, killed, or not begun"
    name = run_name("iteration", found.run, found.iteration)
    retries = [
        f"prefect flow-run retry {one.id}" for one in failed if one.name == name and one.deployment_id
    ][:1]
    return Failure(stage=stage, reason=reason, commands=[go_on, *retries])


def _sum(seconds: Iterable[float | None]) -> float | None:
    """All of them, or None where one is not known."""
    total = 0.0
    for value in seconds:
        if value is None:
            return None
        total += value
    return total


def _last_wanted(run: str, flow_runs: list[FlowRun]) -> int | None:
    """The last iteration that a running `nlac/training` of this run wants."""
    for one in flow_runs:
        count = one.parameters.get("iterations")
        if one.name == run_name("training", run) and isinstance(count, int):
            return int(one.parameters.get("iteration") or 0) + count - 1
    return None


def _run_left(
    found: LeftBehind, wanted: int | None, left: float | None, stages: list[StageStanding]
) -> float | None:
    """What is left of the run: the rest of this iteration, and further ones as long as this one."""
    if wanted is None or left is None:
        return None
    if found.iteration >= wanted:
        return left
    whole = _sum(s.seconds if s.state == "committed" else found.seconds_before(s.stage) for s in stages)
    return None if whole is None else left + (wanted - found.iteration) * whole


def _failed_rows(manifests: dict[str, Manifest]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for manifest in manifests.values():
        for name, entry in manifest.tables.items():
            counts.update({f"{name} {status}": n for status, n in entry.statuses.items() if status != "ok"})
    return dict(counts)
