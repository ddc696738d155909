"""What a running stage tells: a Prefect progress artifact, a file for the terminal, links to its results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.stack.environment import stack_dir
from prompts import template_text
from schemas.config import Config
from storage.files import replace_text
from storage.store import Committed
from tasks.environments import make_environment
from tasks.prompting.rendering import role_templates
from tasks.runtime.progress import ProgressState


def progress_line(state: ProgressState) -> str:
    """One line for people: items done, rate, time left."""
    counted = f"{state.done}/{state.total} {state.unit}"
    left = state.remaining_seconds
    if left is None or state.seconds < 1.0:  # too early for a rate
        return counted
    return f"{counted}, {state.rate:.2f}/s" + (f", {left:.0f} s left" if state.done < state.total else "")


@dataclass(frozen=True)
class Snapshot:
    """What the progress file of a stage says."""

    iteration: int
    state: ProgressState

    @staticmethod
    def path(root: Path, run: str, stage: str) -> Path:
        """Where it lies."""
        return stack_dir(root) / "progress" / f"{run}-{stage}.json"

    @classmethod
    def read(cls, root: Path, run: str, stage: str, since: float) -> "Snapshot | None":
        """What a stage last said; None if it has said nothing since `since` (seconds since the epoch)."""
        path = cls.path(root, run, stage)
        if not path.exists() or path.stat().st_mtime < since:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["iteration"], ProgressState(**content["state"]))

    def write(self, root: Path, run: str) -> None:
        """Replace the file."""
        text = json.dumps({"iteration": self.iteration, "state": self.state.__dict__})
        replace_text(self.path(root, run, self.state.stage), text)


class Reporter:
    """Keeps the latest progress and publishes it when asked, so that a stage's loop never waits for the
    network.

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
        """Take note; called from the stage's own thread, as often as it likes."""
        self._latest = state

    def publish(self) -> None:
        """Tell what is new, if anything."""
        state = self._latest
        if state is None or state == self._published:
            return
        self._published = state
        Snapshot(self.iteration, state).write(self.root, self.run)
        percent, line = 100.0 * state.done / max(state.total, 1), progress_line(state)
        if self._artifact is None:
            key = f"{state.stage}-progress"
            self._artifact = cast(UUID, create_progress_artifact(percent, key=key, description=line))
        else:
            update_progress_artifact(self._artifact, progress=percent, description=line)


def publish_result(committed: Committed, mlflow_url: str | None) -> None:
    """Leave a Prefect artifact with what a stage committed and where to look at it."""
    m = committed.manifest
    rows = "\n".join(f"| {name} | {t.rows} | {t.rejected} |" for name, t in m.tables.items())
    mlflow = (
        f"[MLflow run]({mlflow_url}), served by `nlac mlflow-ui`" if mlflow_url else "not logged in MLflow"
    )
    text = f"`{committed.path}`\n\n{mlflow}\n\n| table | rows | rejected |\n|---|---|---|\n{rows}\n"
    create_markdown_artifact(text, key=m.stage, description=f"{m.stage} of {m.run}, iteration {m.iteration}")


def prompt_texts(config: Config, committed: Committed) -> dict[str, str]:
    """The texts of the templates that a stage renders under a configuration, by name, for MLflow's
    registry."""
    replaced = {**make_environment(config.environment).templates, **role_templates(config)}
    return {name: template_text(name, replaced) for name in committed.manifest.fingerprint_inputs.prompts}
