"""Running a stage: reused, or computed and committed.

The same functions serve Prefect's flows and plain Python: `tasks.pipeline.iterations.run_iteration` runs everything in
this process.
"""

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from schemas.config import Config
from schemas.manifest import Lineage, folder_name
from storage.store import Committed, Store
from tasks.engines.protocol import EngineDied
from tasks.engines.request_journal import RequestJournal
from tasks.engines.vllm.servers import put_to_sleep
from tasks.pipeline.commit import commit_output
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs, fingerprint_of
from tasks.pipeline.registry import STAGES, decide, resolve_inputs
from tasks.runtime.context import StageContext
from tasks.runtime.progress import Progress, Report
from tasks.runtime.stage import StageFailed


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
    fingerprint_inputs = collect_fingerprint_inputs(spec, config, iteration, inputs)
    fingerprint = fingerprint_of(fingerprint_inputs)
    attempt = store.next_attempt(config.run, stage, iteration, fingerprint)
    name = folder_name(fingerprint, attempt)
    started, clock = datetime.now(UTC), time.monotonic()
    with store.staging(config.run) as workdir, _stage_log(workdir / "stage.log") as log:
        journal = (
            RequestJournal(store.requests_journal(config.run, stage, iteration, name)) if spec.roles else None
        )
        ctx = StageContext(
            config=config,
            stage=stage,
            iteration=iteration,
            inputs=inputs,
            workdir=workdir,
            cache_dir=store.cache_dir,
            fingerprint=name,
            checkpoint=store.checkpoint(config.run, stage, iteration, name),
            progress=Progress(stage, report),
            log=log,
            journal=journal,
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
            if journal:
                journal.close()
            _give_back_memory()
        committed = commit_output(
            store,
            spec,
            output,
            fingerprint_inputs=fingerprint_inputs,
            fingerprint=fingerprint,
            attempt=attempt,
            workdir=workdir,
            tokens=ctx.tokens,
            started=started,
            seconds=time.monotonic() - clock,
            lineage=lineage or Lineage(),
        )
    if journal:
        journal.close(remove=True)
    store.checkpoint(config.run, stage, iteration, name).unlink(missing_ok=True)
    if decision.committed is not None:
        mark_downstream_stale(store, config.run, stage, iteration)
    return StageResult(committed, False, decision.reasons)


def _give_back_memory() -> None:
    """To the system what a stage has freed: the C library would keep gigabytes of it, some for each thread that was."""
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


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
