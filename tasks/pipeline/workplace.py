"""Where a stage, or one of its shards, is computed: staging folder, log, journal, engines, context."""

import asyncio
import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.config import Config
from schemas.manifest import StageKey
from schemas.shards import Shard
from storage.files import full_disk_named, make_folder
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.engines.protocol import EngineDied
from tasks.engines.request_journal import RequestJournal
from tasks.engines.vllm.servers import put_to_sleep
from tasks.pipeline.decision import Decision
from tasks.pipeline.registry import STAGES
from tasks.runtime.context import StageContext, Workspace
from tasks.runtime.dealing import Sharding
from tasks.runtime.progress import Progress, Report
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Output, StageInterrupted


@dataclass(frozen=True)
class Workplace:
    """What a computation works with.

    Attributes:
        ctx: given to the stage's function.
        folder: the staging folder.
        said: the log's file.
        log: of the computation.
        journal: of its requests; None where it makes none.
    """

    ctx: StageContext
    folder: Path
    said: Path
    log: logging.Logger
    journal: RequestJournal | None

    async def compute(self) -> Output:
        """Run the stage's function, then close engines and journal.

        Raises:
            StageInterrupted: an engine died.
        """
        ctx, stage = self.ctx, STAGES[self.ctx.stage]
        try:
            if stage.pool == "training" and ctx.config.pools.shared_gpu:
                for reason in await asyncio.to_thread(put_to_sleep, ctx.roles.cache_dir):
                    self.log.warning("not put to sleep: %s", reason)
            with full_disk_named(self.folder):
                output = await stage.run(ctx)
        except* EngineDied as died:
            raise StageInterrupted(f"{ctx.stage}: {next(_leaves(died))}") from died
        except* OSError as failed:  # a full disk, for instance: many requests meet it at once
            raise next(_leaves(failed)) from failed
        finally:
            await ctx.roles.close()
            if self.journal:
                self.journal.close()
            _give_back_memory()
        return output


@contextmanager
def workplace(
    store: Store,
    config: Config,
    decision: Decision,
    folder: str,
    report: Report | None,
    sharding: Sharding = None,
) -> Iterator[Workplace]:
    """Make a workplace. The caller holds the stage, or the shard, for computing (`Store.computing`).

    Args:
        store: the artifact store.
        config: the resolved configuration.
        decision: to compute the stage.
        folder: name of the folder that the stage will commit.
        report: told of progress.
        sharding: what of the stage this is.
    """
    key, stage = decision.key, STAGES[decision.key.stage]
    own: StageKey = sharding.of(key) if isinstance(sharding, Shard) else key
    said = store.stage_log(own)
    with store.staging(key.run) as staged, stage_log(said) as log:
        journal = RequestJournal(store.requests_journal(own, folder)) if stage.roles else None
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
            workspace=Workspace(staged, folder, store.checkpoint(key, folder)),
            progress=Progress(own.stage, report, log, lambda: (dict(roles.costs), roles.faults())),
            log=log,
            sharding=sharding,
        )
        log.info(
            "%s of iteration %d of run '%s': %s",
            own.stage,
            key.iteration,
            key.run,
            "; ".join(decision.reasons),
        )
        yield Workplace(ctx, staged, said, log, journal)


@contextmanager
def stage_log(path: Path) -> Iterator[logging.Logger]:
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
