"""What a stage shows in Prefect: its name, a progress artifact while it runs, links to its results at the end.

Reporting never ends a computation. What can't be shown is said in the log.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    acreate_markdown_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.deployments.names import run_name, run_tags
from flows.deployments.progress import ProgressFile
from schemas.rows import Evaluation
from schemas.shards import Shard
from schemas.shown import link, markdown, visible
from storage.store import Committed, Store
from tasks.runtime.progress import ProgressState, progress_line

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
        with not_fatal("the progress file", self._failing):
            ProgressFile(self.iteration, state).write(self.root, self.run)
        with not_fatal("the progress artifact", self._failing):
            self._show(state)

    def _show(self, state: ProgressState) -> None:
        """Make the artifact, or update it. One that can't be updated, since someone deleted it, is made again."""
        percent, line = 100.0 * state.done / max(state.total, 1), progress_line(state)
        known, self._artifact = self._artifact, None
        if known is None:
            key = f"{state.stage}-progress".replace(".", "-")  # all that Prefect takes
            known = cast(UUID, create_progress_artifact(percent, key=key, description=line))
        else:
            update_progress_artifact(known, progress=percent, description=line)
        self._artifact = known


@contextmanager
def not_fatal(what: str, failing: set[str] | None = None) -> Iterator[None]:
    """Log what reporting raises, and go on.

    Args:
        what: is written; begins the message.
        failing: what failed the last time, and is not logged again.
    """
    failing = set() if failing is None else failing
    try:
        yield
    except Exception:  # noqa: BLE001  said below
        if what not in failing:
            _log.warning("%s was not written; the run goes on", what, exc_info=True)
        failing.add(what)
    else:
        failing.discard(what)


class _RunLog(logging.Handler):
    """Hands log lines to the flow run that was running when it was made, from whatever thread they come."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._log = get_run_logger()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # as `logging` itself: a line that can't be shown ends nothing
            self._log.log(record.levelno, "%s", visible(self.format(record)))


@contextmanager
def stage_log_shown() -> Iterator[None]:
    """Show what a stage logs in the log of its flow run too."""
    handler, log = _RunLog(), logging.getLogger("nlac.stage")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def publish_result(store: Store, committed: Committed, mlflow_url: str | None) -> None:
    """Leave a Prefect artifact that says what a stage committed and where to see it; of an evaluation also what came of
    the iteration, as the terminal says it."""
    m = committed.manifest
    about = f"{m.stage} of {m.run}, iteration {m.iteration}"
    with not_fatal("the result's artifact"):
        text = result_text(committed, mlflow_url)
        if Evaluation.TABLE in m.tables:
            from tasks.export.report import report_of  # loads DuckDB, which other stages do without
            from tasks.export.report_pages import outcome_lines

            lines = outcome_lines(report_of(store, m.run, m.iteration))
            about = f"{about}: {lines[0]}"
            text = "\n".join(f"- {markdown(line)}" for line in lines) + f"\n\n{text}"
        create_markdown_artifact(text, key=m.stage, description=markdown(about))


async def publish_report(store: Store, run: str, iteration: int) -> str | None:
    """Leave the page of an iteration as a Prefect artifact.

    Returns:
        The page; None where it could not be made.
    """
    page = None
    with not_fatal("the iteration's report"):
        from tasks.export.report import report_of
        from tasks.export.report_pages import markdown_page

        page = markdown_page(await asyncio.to_thread(report_of, store, run, iteration))
        about = markdown(f"report of {run}, iteration {iteration}")
        await acreate_markdown_artifact(page, key="report", description=about)
    return page


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


def name_this_run(
    deployment: str, run: str, iteration: int | None = None, shard: Shard | None = None
) -> None:
    """Name and tag the flow run of this process, unless it was dispatched under that name.

    Prefect calls a flow run that a person starts by two random words.
    """
    name, tags = run_name(deployment, run, iteration, shard), run_tags(deployment, run, iteration, shard)
    if flow_run.name == name and set(tags) <= set(flow_run.tags):
        return
    with not_fatal("the flow run's name"), get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), name=name, tags=sorted({*flow_run.tags, *tags}))
