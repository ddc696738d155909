"""Running a stage: reused, or computed and committed.

Prefect's flows and plain Python share these functions: `tasks.pipeline.iterations.run_iteration` runs everything in
this process.
"""

import asyncio
import ctypes
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from schemas.config import Config
from schemas.manifest import Current, OrchestrationIds, StageKey
from storage.committed import Unreachable
from storage.files import full_disk_named, make_folder
from storage.store import Committed, StageBusy, Store
from tasks.algorithms import algorithm_of
from tasks.engines.protocol import EngineDied
from tasks.engines.request_journal import RequestJournal
from tasks.engines.vllm.servers import put_to_sleep
from tasks.pipeline.commit import StageRun, begin_run, commit_output
from tasks.pipeline.decision import Decision, decide
from tasks.pipeline.faults import refuse_outage
from tasks.pipeline.registry import STAGES
from tasks.runtime.context import StageContext, Workspace
from tasks.runtime.progress import Progress, Report
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Inputs, Output, StageInterrupted


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
        decision.committed.check(content=False)
        store.adopt(decision.committed)
        return StageResult(decision.committed, True, decision.reasons)
    try:
        _check_inputs(store, decision.inputs)
        with store.computing(decision.key):
            run = begin_run(store, decision.fingerprint_inputs, orchestration)
            checkpoint = store.checkpoint(decision.key, run.folder)
            committed = await _compute(store, config, decision, run, checkpoint, report)
            checkpoint.unlink(missing_ok=True)
    except (StageBusy, Unreachable) as passing:
        raise StageInterrupted(str(passing)) from passing
    return StageResult(committed, False, decision.reasons)


def _check_inputs(store: Store, inputs: Inputs) -> None:
    """Bring what a stage reads to where it is read, and check that it is what was committed.

    Raises:
        StoreError: a file is missing or damaged; it is named.
    """
    for table, parts in inputs.tables.items():
        for part in parts:
            part.check(content=True, below=part.manifest.tables[table].file)
    for use, part in inputs.files.items():
        part.check(content=True, below=f"{use}.pt")
    for folder in {adapter.path for adapter in inputs.adapters.values() if adapter}:
        store.at(folder.parent).check(content=True, below=f"{folder.name}/")


async def _compute(
    store: Store,
    config: Config,
    decision: Decision,
    run: StageRun,
    checkpoint: Path,
    report: Report | None,
) -> Committed:
    """Compute a stage in a staging folder, and commit that."""
    key, stage = decision.key, STAGES[decision.key.stage]
    said = store.stage_log(key)
    with store.staging(key.run) as workdir, _stage_log(said) as log:
        journal = RequestJournal(store.requests_journal(key, run.folder)) if stage.roles else None
        if journal and journal.skipped:
            log.warning("%d damaged lines of the journal; their requests are asked again", journal.skipped)
        roles = RoleClient(
            config, key.stage, key.iteration, decision.inputs.adapters, store.cache_dir, journal
        )
        ctx = StageContext(
            config=config,
            algorithm=algorithm_of(config),
            stage=key.stage,
            iteration=key.iteration,
            inputs=decision.inputs,
            roles=roles,
            workspace=Workspace(workdir, run.folder, checkpoint),
            progress=Progress(key.stage, report, log, lambda: (dict(roles.costs), roles.faults())),
            log=log,
        )
        if stage.pool == "training" and config.pools.shared_gpu:
            for reason in await asyncio.to_thread(put_to_sleep, store.cache_dir):
                log.warning("not put to sleep: %s", reason)
        log.info(
            "%s of iteration %d of run '%s': %s",
            key.stage,
            key.iteration,
            key.run,
            "; ".join(decision.reasons),
        )
        try:
            with full_disk_named(workdir):
                output = await stage.run(ctx)
            refuse_outage(key.stage, output.tables, config.faults.max_failed_share)
        except* EngineDied as died:
            raise StageInterrupted(f"{key.stage}: {next(_leaves(died))}") from died
        except* OSError as failed:  # a full disk, for instance: many requests meet it at once
            raise next(_leaves(failed)) from failed
        finally:
            await roles.close()
            if journal:
                journal.close()
            _give_back_memory()
        for line in _what_was_done(output, run.seconds, roles):
            log.info("%s", line)
        shutil.copyfile(said, workdir / "stage.log")
        if decision.committed is not None:
            # Before the commit: a process killed between the two would leave later stages current for ever.
            mark_downstream_stale(store, key)
        tokens = roles.tokens + ctx.trained_tokens
        with full_disk_named(workdir):
            committed = commit_output(store, run, stage, output, workdir, tokens, roles.costs)
    said.unlink(missing_ok=True)
    if journal:
        journal.close(remove=True)
    return committed


def _what_was_done(output: Output, seconds: float, roles: RoleClient) -> Iterator[str]:
    """The last lines of a stage's log: rows by status, measures, and what each role cost."""
    for table, rows in output.tables.items():
        failed = Counter(row.status for row in rows if row.status != "ok")
        kinds = "".join(f", {count} {status}" for status, count in sorted(failed.items()))
        yield f"{table}: {len(rows)} rows{kinds}"
    if output.metrics:
        yield ", ".join(f"{name} {value:.6g}" for name, value in output.metrics.items())
    for role, cost in roles.costs.items():
        read, wrote = f"{cost.prompt_tokens} tokens read", f"{cost.completion_tokens} written"
        failed_too = f", {cost.failed} failed" if cost.failed else ""
        yield f"{role}: {cost.texts} texts, {cost.scored} scored, {read}, {wrote}, {cost.seconds:.1f} s{failed_too}"
    for kind, count in roles.faults().items():
        yield f"faults: {count} x {kind}"
    yield f"done: {output.rows_in} items in {seconds:.1f} s"


def _give_back_memory() -> None:
    """Return freed memory to the system. The C library would keep gigabytes of it, some for each ended thread."""
    with suppress(AttributeError):  # glibc has it, other C libraries don't
        ctypes.CDLL(None).malloc_trim(0)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group of groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


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


@contextmanager
def _stage_log(path: Path) -> Iterator[logging.Logger]:
    """A logger that also writes the stage's own file, in which an error comes last. The file holds all attempts at the
    stage until one is committed."""
    make_folder(path.parent)
    log = logging.getLogger(f"nlac.stage.{os.getpid()}")
    log.setLevel(logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield log
    except BaseException as error:
        log.exception("the stage failed")
        error.add_note(f"the stage's log: {path}")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()
