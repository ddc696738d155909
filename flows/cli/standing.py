"""Where runs stand, from what they leave while they work: progress files, logs, committed stages, the run's lock.

Nothing is asked of a running process, and nothing is locked, so that looking disturbs nobody. Prefect's server, where
it is up, adds its own runs.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.cli.shards import ShardsStanding, shards_standing
from flows.deployments.names import run_name
from flows.deployments.progress import ProgressFile
from schemas.config import Config
from schemas.manifest import Manifest, RoleCost, StageKey
from storage.committed import StoreError
from storage.store import Store
from tasks.pipeline.iterations import frozen_config
from tasks.pipeline.registry import STAGES, stages_of
from tasks.runtime.progress import ProgressState

FAILED_ONCE = "ERROR the stage failed"
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (.*)")


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class StageStanding(_Shown):
    """One stage of an iteration. Seconds left are those of its present phase, at the rate so far; of a waiting stage,
    what it took in the last iteration that has it. A running stage whose items are dealt out has shards."""

    stage: str
    state: Literal["committed", "running", "waiting", "failed"]
    seconds: float | None = None
    seconds_left: float | None = None
    progress: ProgressState | None = None
    shards: ShardsStanding | None = None


class Failure(_Shown):
    """What failed, why, and the commands that go on. Without a stage only the iteration's end is missing."""

    stage: str | None
    reason: str
    commands: list[str]


class RunStanding(_Shown):
    """A run, in its newest iteration.

    Attributes:
        holder: who writes it now; None: nobody.
        last_iteration: the last one that a running `nlac/training` wants.
        roles: what each role's requests cost in this iteration so far.
        rows: rows whose status is not ok, of the stages committed in this iteration, by table and status.
        faults: of the running stage, failed and repeated requests by kind.
        attempts: failed attempts at unfinished stages, by kind.
        still_seconds: since anything moved.
    """

    run: str
    iteration: int
    state: Literal["running", "finished", "stopped"]
    holder: str | None = None
    last_iteration: int | None = None
    stages: list[StageStanding] = []
    seconds_left: float | None = None
    run_seconds_left: float | None = None
    loss: float | None = None
    roles: dict[str, RoleCost] = {}
    rows: dict[str, int] = {}
    faults: dict[str, int] = {}
    attempts: dict[str, int] = {}
    still_seconds: float | None = None
    failure: Failure | None = None

    @property
    def stage(self) -> StageStanding | None:
        """The running stage."""
        return next((stage for stage in self.stages if stage.state == "running"), None)


class FlowRun(_Shown):
    """A run of Prefect that is not over, or the last failed one of a run's iteration."""

    model_config = ConfigDict(extra="ignore")

    id: str
    name: str
    state_name: str | None = None
    start_time: datetime | None = None
    parameters: dict[str, Any] = Field({}, exclude=True)


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
    names, holder = stages_of(config, iteration), store.living_holder(run)
    over = store.current(run, iteration).state == "finished"
    manifests = {name: m for name in names if (m := _manifest(store, run, name, iteration))}
    working = None if holder is None or over else next((n for n in names if n not in manifests), None)
    progress = {name: _progress(store, run, name, iteration, now) for name in names}
    logs = {name: _failures(store, run, name, iteration) for name in names if name not in manifests}
    broken = None if over or holder else next((name for name in names if name not in manifests), None)
    stages = []
    for name in names:
        done = manifests.get(name)
        before = _seconds_before(store, run, name, iteration)
        if done is not None:
            stages.append(StageStanding(stage=name, state="committed", seconds=done.seconds))
        elif name == working:
            at = progress[name]
            left = at.remaining_seconds if at is not None else before
            seconds = None if at is None else at.seconds
            shards = _shards(store, config, name, iteration, flow_runs, now)
            stages.append(
                StageStanding(
                    stage=name,
                    state="running",
                    seconds=seconds,
                    seconds_left=left,
                    progress=at,
                    shards=shards,
                )
            )
        else:
            state: Literal["failed", "waiting"] = "failed" if name == broken and logs[name] else "waiting"
            stages.append(StageStanding(stage=name, state=state, seconds_left=before))
    left = _sum([s.seconds_left for s in stages if s.state != "committed"])
    wanted = _last_wanted(run, flow_runs)
    at = progress[working] if working else None
    costs = [m.roles for m in manifests.values()] + ([dict(at.roles)] if at else [])
    return RunStanding(
        run=run,
        iteration=iteration,
        state="finished" if over else "running" if holder else "stopped",
        holder=holder,
        last_iteration=wanted,
        stages=stages,
        seconds_left=0.0 if over else left,
        run_seconds_left=_run_left(store, run, iteration, wanted, 0.0 if over else left, stages),
        loss=at.loss if at else None,
        roles={role: sum((c[role] for c in costs if role in c), RoleCost()) for c in costs for role in c},
        rows=_failed_rows(manifests),
        faults=dict(at.faults) if at else {},
        attempts=dict(Counter(kind for found in logs.values() for kind, _ in found)),
        still_seconds=_still(store, run, iteration, names, now),
        failure=None if over or holder else _failure(store, run, iteration, broken, logs, failed, go_on),
    )


def _shards(
    store: Store, config: Config, stage: str, iteration: int, flow_runs: list[FlowRun], now: float
) -> ShardsStanding | None:
    if config.pools.shards == 1 or STAGES[stage].item is None:
        return None
    key = StageKey(stage=stage, run=config.run, iteration=iteration)
    started = {one.name: one.start_time.timestamp() for one in flow_runs if one.start_time is not None}
    return shards_standing(store, key, config.pools.shards, started, now)


def _manifest(store: Store, run: str, stage: str, iteration: int) -> Manifest | None:
    try:
        committed = store.committed(run, stage, iteration)
    except StoreError:
        return None  # `nlac verify` names it
    return committed.manifest if committed else None


def _progress(store: Store, run: str, stage: str, iteration: int, now: float) -> ProgressState | None:
    """How far a stage has come: as it said last, and what time has passed since."""
    found = ProgressFile.read(store.root, run, stage, 0.0)
    if found is None or found.iteration != iteration:
        return None
    waited = now - max(path.stat().st_mtime for path in ProgressFile.paths(store.root, run, stage))
    return replace(found.state, seconds=found.state.seconds + max(waited, 0.0))


def _failures(store: Store, run: str, stage: str, iteration: int) -> list[tuple[str, str]]:
    """Kind and reason of each failed attempt at an unfinished stage, from its log."""
    logs = [path for path in _logs(store, run, stage, iteration) if path.exists()]
    said = [path.read_text(encoding="utf-8", errors="replace").split(FAILED_ONCE)[1:] for path in logs]
    parts = [part for of_one in said for part in of_one]
    found = []
    for part in parts:
        raised = [match for line in part.splitlines() if (match := _RAISED.fullmatch(line))]
        found.append((raised[-1][1], raised[-1][2]) if raised else ("unknown", part.strip()[-200:]))
    return found


def _failure(
    store: Store,
    run: str,
    iteration: int,
    stage: str | None,
    logs: dict[str, list[tuple[str, str]]],
    failed: list[FlowRun],
    go_on: str,
) -> Failure:
    """Why an iteration that nobody computes is unfinished."""
    said = logs[stage] if stage else []
    if stage is None:
        reason = "every stage is committed, and the iteration was not closed: it was stopped or killed"
    elif said:
        log = store.stage_log(StageKey(stage=stage, run=run, iteration=iteration))
        reason = f"{said[-1][0]}: {said[-1][1]} (its log: {log})"
    else:
        reason = "no attempt left an error: it was stopped, killed, or not begun"
    name = run_name("iteration", run, iteration)
    retries = [f"prefect flow-run retry {one.id}" for one in failed if one.name == name][:1]
    return Failure(stage=stage, reason=reason, commands=[go_on, *retries])


def _seconds_before(store: Store, run: str, stage: str, iteration: int) -> float | None:
    """What a stage took in the last earlier iteration that has it."""
    earlier = (_manifest(store, run, stage, number) for number in range(iteration - 1, -1, -1))
    return next((m.seconds for m in earlier if m is not None), None)


def _sum(seconds: list[float | None]) -> float | None:
    """All of them, or None where one is not known."""
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


def _last_wanted(run: str, flow_runs: list[FlowRun]) -> int | None:
    """The last iteration that a running `nlac/training` of this run wants."""
    for one in flow_runs:
        count = one.parameters.get("iterations")
        if one.name == run_name("training", run) and isinstance(count, int):
            return int(one.parameters.get("iteration") or 0) + count - 1
    return None


def _run_left(
    store: Store,
    run: str,
    iteration: int,
    wanted: int | None,
    left: float | None,
    stages: list[StageStanding],
) -> float | None:
    """What is left of the run: the rest of this iteration, and further ones as long as this one."""
    if wanted is None or left is None:
        return None
    whole = _sum(
        [
            s.seconds if s.state == "committed" else _seconds_before(store, run, s.stage, iteration)
            for s in stages
        ]
    )
    if iteration >= wanted:
        return left
    return None if whole is None else left + (wanted - iteration) * whole


def _failed_rows(manifests: dict[str, Manifest]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for manifest in manifests.values():
        for name, entry in manifest.tables.items():
            counts.update({f"{name} {status}": n for status, n in entry.statuses.items() if status != "ok"})
    return dict(counts)


def _still(store: Store, run: str, iteration: int, stages: list[str], now: float) -> float | None:
    """Seconds since the run left any trace of work."""
    moved = [path.stat().st_mtime for path in _traces(store, run, iteration, stages) if path.exists()]
    return max(0.0, now - max(moved)) if moved else None


def _traces(store: Store, run: str, iteration: int, stages: list[str]) -> Iterator[Path]:
    yield store.current_path(run, iteration)
    for stage in stages:
        yield from ProgressFile.paths(store.root, run, stage)
        yield from _logs(store, run, stage, iteration)
    yield from store.run_dir(run).glob(".requests/*.journal")


def _logs(store: Store, run: str, stage: str, iteration: int) -> list[Path]:
    """The logs of an unfinished stage and of its shards."""
    own = store.stage_log(StageKey(stage=stage, run=run, iteration=iteration))
    return [own, *own.parent.glob(f"{stage}.????-of-????-{iteration:05d}.log")]
