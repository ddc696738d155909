"""What a stage shows in Prefect: a progress artifact while it runs, links to its results at the end.

Reporting never ends a computation. What can't be shown is said in the log.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.deployments.progress import ProgressFile, progress_line
from schemas.shown import link, markdown
from storage.store import Committed
from tasks.runtime.progress import ProgressState

_log = logging.getLogger("nlac.reporting")


class Reporter:
    """Keeps the latest progress and publishes it when asked, so that a stage's loop never waits for the network.

    Args:
        root: the data root.
        run: the run.
        iteration: its iteration.
    """

    def __init__(self, root: Path, run: str, iteration: int) -> None:
        self.root, self.run, self.iteration = root, run, iteration
        self._latest: ProgressState | None = None
        self._published: ProgressState | None = None
        self._artifact: UUID | None = None
        self._failing: set[str] = set()

    def report(self, state: ProgressState) -> None:
        """Keep a state. The stage's own thread calls this, as often as it likes."""
        self._latest = state

    def publish(self) -> None:
        """Publish the latest state, if it is new. A failure is logged when it begins, not each time."""
        state = self._latest
        if state is None or state == self._published:
            return
        self._published = state
        with _not_fatal("the progress file", self._failing):
            ProgressFile(self.iteration, state).write(self.root, self.run)
        with _not_fatal("the progress artifact", self._failing):
            self._show(state)

    def _show(self, state: ProgressState) -> None:
        """Make the artifact, or update it. One that can't be updated, since someone deleted it, is made again."""
        percent, line = 100.0 * state.done / max(state.total, 1), progress_line(state)
        known, self._artifact = self._artifact, None
        if known is None:
            key = f"{state.stage}-progress"
            known = cast(UUID, create_progress_artifact(percent, key=key, description=line))
        else:
            update_progress_artifact(known, progress=percent, description=line)
        self._artifact = known


@contextmanager
def _not_fatal(what: str, failing: set[str]) -> Iterator[None]:
    """Log what reporting raises, and go on.

    Args:
        what: is written; begins the message.
        failing: what failed the last time, and is not logged again.
    """
    try:
        yield
    except Exception:  # noqa: BLE001  said below
        if what not in failing:
            _log.warning("%s was not written; the stage goes on", what, exc_info=True)
        failing.add(what)
    else:
        failing.discard(what)


def publish_result(committed: Committed, mlflow_url: str | None) -> None:
    """Leave a Prefect artifact that says what a stage committed and where to see it."""
    m = committed.manifest
    about = markdown(f"{m.stage} of {m.run}, iteration {m.iteration}")
    with _not_fatal("the result's artifact", set()):
        create_markdown_artifact(result_text(committed, mlflow_url), key=m.stage, description=about)


def result_text(committed: Committed, mlflow_url: str | None) -> str:
    """What a stage committed, as Markdown."""
    tables = committed.manifest.tables.items()
    rows = "\n".join(f"| {markdown(name)} | {t.rows} | {t.rejected} |" for name, t in tables)
    mlflow = (
        f"{link('MLflow run', mlflow_url)}, served by `nlac mlflow-ui`"
        if mlflow_url
        else "not logged in MLflow"
    )
    path = markdown(str(committed.path))
    return f"{path}\n\n{mlflow}\n\n| table | rows | rejected |\n|---|---|---|\n{rows}\n"
