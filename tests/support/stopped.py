"""A run that stopped: an iteration is begun, some stages are committed, and a log says why the next one failed."""

from collections.abc import Sequence

from schemas.config import Config
from schemas.load import dump_config
from schemas.manifest import StageKey
from storage.files import make_folder
from storage.store import Store
from tests.support.committed import commit_rows

FAILED_LOG = """2026-01-01 00:00:00,000 INFO critique of iteration 0 of run 'trial': it was never computed
2026-01-01 00:00:01,000 ERROR the stage failed
Traceback (most recent call last):
  File "runner.py", line 1, in _compute
tasks.runtime.stage.StageInterrupted: critique: the server has ended
2026-01-01 00:00:02,000 ERROR the stage failed
Traceback (most recent call last):
  File "runner.py", line 1, in _compute
tasks.runtime.stage.StageFailed: no critique is \x1b[31musable
"""


def begin(store: Store, config: Config, iteration: int, committed: Sequence[str] = ()) -> None:
    """An iteration with these stages committed; each took 1.5 seconds."""
    store.set_config(config.run, iteration, dump_config(config))
    for stage in committed:
        commit_rows(store, stage, iteration, {}, run=config.run)


def fail(store: Store, config: Config, iteration: int, stage: str) -> None:
    """Leave the log of a stage that failed twice."""
    log = store.stage_log(StageKey(stage=stage, run=config.run, iteration=iteration))
    make_folder(log.parent)
    log.write_text(FAILED_LOG)
