"""What a stage shows in Prefect: a progress artifact while it runs, links to its results at the end."""

from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.deployments.progress import ProgressFile, progress_line
from storage.store import Committed
from tasks.runtime.progress import ProgressState


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

    def report(self, state: ProgressState) -> None:
        """Keep a state. The stage's own thread calls this, as often as it likes."""
        self._latest = state

    def publish(self) -> None:
        """Publish the latest state, if it is new."""
        state = self._latest
        if state is None or state == self._published:
            return
        self._published = state
        ProgressFile(self.iteration, state).write(self.root, self.run)
        percent, line = 100.0 * state.done / max(state.total, 1), progress_line(state)
        if self._artifact is None:
            key = f"{state.stage}-progress"
            self._artifact = cast(UUID, create_progress_artifact(percent, key=key, description=line))
        else:
            update_progress_artifact(self._artifact, progress=percent, description=line)


def publish_result(committed: Committed, mlflow_url: str | None) -> None:
    """Leave a Prefect artifact that says what a stage committed and where to see it."""
    m = committed.manifest
    rows = "\n".join(f"| {name} | {t.rows} | {t.rejected} |" for name, t in m.tables.items())
    mlflow = (
        f"[MLflow run]({mlflow_url}), served by `nlac mlflow-ui`" if mlflow_url else "not logged in MLflow"
    )
    text = f"`{committed.path}`\n\n{mlflow}\n\n| table | rows | rejected |\n|---|---|---|\n{rows}\n"
    create_markdown_artifact(text, key=m.stage, description=f"{m.stage} of {m.run}, iteration {m.iteration}")
