"""Running a stage: reused, or computed and committed.

Prefect's flows and plain Python share these functions: `tasks.pipeline.iterations.run_iteration` runs everything in
this process.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

from schemas.config import Config
from schemas.manifest import Current, OrchestrationIds, RoleCost, StageKey
from storage.committed import Unreachable
from storage.files import full_disk_named
from storage.locks import StageBusy
from storage.shards import CommittedShard
from storage.store import Committed, Store
from tasks.pipeline.commit import StageRun, begin_run, commit_output
from tasks.pipeline.decision import Decision, decide
from tasks.pipeline.faults import refuse_outage
from tasks.pipeline.registry import STAGES
from tasks.pipeline.shards import (
    check_inputs,
    compute_missing,
    discard_faulty,
    merging,
    shards_of,
    total_costs,
    with_shards,
)
from tasks.pipeline.workplace import workplace
from tasks.runtime.progress import Report
from tasks.runtime.stage import Output, StageInterrupted


@dataclass(frozen=True)
class StageResult:
    """A stage that is committed, computed now or before."""

    committed: Committed
    reused: bool
    reasons: tuple[str, ...]


async def run_stage(
    store: Store,
    config: Config,
    stage: str,
    iteration: int,
    *,
    force: bool = False,
    frozen: bool = True,
    report: Report | None = None,
) -> StageResult:
    """Decide about a stage and carry the decision out; see `decide` and `carry_out`."""
    decision = decide(store, config, stage, iteration, force=force, frozen=frozen)
    return await carry_out(store, config, decision, report=report)


async def carry_out(
    store: Store,
    config: Config,
    decision: Decision,
    *,
    report: Report | None = None,
    orchestration: OrchestrationIds | None = None,
) -> StageResult:
    """Reuse a stage, or compute and commit it, as was decided. The caller holds the run's lock.

    A recomputed stage marks what lies downstream as stale.

    Args:
        store: the artifact store.
        config: the resolved configuration that the decision was made with.
        decision: what `tasks.pipeline.decision.decide` found in this process, under this lock.
        report: told of progress.
        orchestration: ids of the runs that show the stage, for the manifest.

    Raises:
        StageFailed: it can't give a usable output; nothing is committed, finished requests are kept.
        StageInterrupted: likewise, by a fault that may pass.
        StoreError: an input file is missing or damaged; it is named.
    """
    if decision.reuse and decision.committed is not None:
        return _reuse(store, decision.committed, decision.reasons)
    try:
        check_inputs(store, decision.inputs)
        with store.computing(decision.key):
            run = begin_run(store, decision.fingerprint_inputs, orchestration, decision.attempt)
            if (made := _made_meanwhile(store, run)) is not None:
                return _reuse(store, made, ("another process committed it meanwhile",))
            shards = shards_of(store, config, decision)
            parts = await compute_missing(store, config, decision, shards, report) if shards else []
            checkpoint = store.checkpoint(decision.key, run.folder)
            committed = await _compute(store, config, decision, run, parts, report)
            checkpoint.unlink(missing_ok=True)
            if shards:
                shards.remove()
    except (StageBusy, Unreachable) as passing:
        raise StageInterrupted(str(passing)) from passing
    return StageResult(committed, False, decision.reasons)


def _reuse(store: Store, committed: Committed, reasons: tuple[str, ...]) -> StageResult:
    committed.check(content=False)
    store.adopt(committed)
    return StageResult(committed, True, reasons)


def _made_meanwhile(store: Store, run: StageRun) -> Committed | None:
    """The attempt itself, where another process has committed it since this one decided to compute it."""
    key = run.fingerprint_inputs
    home = store.stage_dir(key.run, key.stage, key.iteration)
    return store.at(home / run.folder) if run.folder in store.place.attempts(home) else None


async def _compute(
    store: Store,
    config: Config,
    decision: Decision,
    run: StageRun,
    parts: Sequence[CommittedShard],
    report: Report | None,
) -> Committed:
    """Compute a stage in a staging folder, with what its shards have computed, and commit that."""
    stage = STAGES[decision.key.stage]
    with workplace(store, config, decision, run.folder, report, merging(stage, parts)) as place:
        roles = place.ctx.roles
        output = await place.compute()
        try:
            refuse_outage(stage.name, output.tables, config.faults.max_failed_share)
        except StageInterrupted:
            discard_faulty(parts)
            raise
        run, costs = with_shards(run, parts), total_costs(roles.costs, parts)
        tokens = roles.tokens + place.ctx.trained_tokens + sum(part.manifest.tokens for part in parts)
        for line in _what_was_done(output, run.seconds, costs, roles.faults()):
            place.log.info("%s", line)
        said = (*(part.log() for part in parts), place.said.read_bytes())
        (place.folder / "stage.log").write_bytes(b"".join(said))
        if decision.committed is not None:
            # Before the commit: a process killed between the two would leave later stages current for ever.
            mark_downstream_stale(store, decision.key)
        with full_disk_named(place.folder):
            committed = commit_output(store, run, stage, output, place.folder, tokens, costs)
    place.said.unlink(missing_ok=True)
    if place.journal:
        place.journal.close(remove=True)
    return committed


def _what_was_done(
    output: Output, seconds: float, costs: Mapping[str, RoleCost], faults: Mapping[str, int]
) -> Iterator[str]:
    """The last lines of a stage's log: rows by status, measures, and what each role cost."""
    for table, rows in output.tables.items():
        failed = Counter(row.status for row in rows if row.status != "ok")
        kinds = "".join(f", {count} {status}" for status, count in sorted(failed.items()))
        yield f"{table}: {len(rows)} rows{kinds}"
    if output.metrics:
        yield ", ".join(f"{name} {value:.6g}" for name, value in output.metrics.items())
    for role, cost in costs.items():
        read, wrote = f"{cost.prompt_tokens} tokens read", f"{cost.completion_tokens} written"
        failed_too = f", {cost.failed} failed" if cost.failed else ""
        yield f"{role}: {cost.texts} texts, {cost.scored} scored, {read}, {wrote}, {cost.seconds:.1f} s{failed_too}"
    for kind, count in faults.items():
        yield f"faults: {count} x {kind}"
    yield f"done: {output.rows_in} items in {seconds:.1f} s"


def mark_downstream_stale(store: Store, recomputed: StageKey) -> None:
    """Mark what may depend on a recomputed stage as stale: later stages, and later iterations.

    The next run of each checks it, and clears the mark where nothing changed.
    """
    names = list(STAGES)
    for number in (n for n in store.iterations(recomputed.run) if n >= recomputed.iteration):
        first = names.index(recomputed.stage) + 1 if number == recomputed.iteration else 0
        later = set(names[first:])
        store.change_current(recomputed.run, number, partial(_with_stale, later=later))


def _with_stale(current: Current, later: Set[str]) -> Current:
    """The same, with stages marked stale."""
    stages = {
        name: entry.model_copy(update={"stale": True}) if name in later else entry
        for name, entry in current.stages.items()
    }
    return current.model_copy(update={"stages": stages})
