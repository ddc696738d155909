"""Tells MLflow what was computed: a run per iteration, a child per stage, out of the committed folders.

    <data>/.mlflow/mlflow.db            the store (SQLite)
    <data>/.mlflow/artifacts/<run>/     what is logged with a run: manifest.json, config.yaml
    <data>/.mlflow/.lock                held while one process writes

MLflow is a mirror, never a source: nothing reads it back, and a store that can't be written is a warning in
the log, not a failed stage. A stage that is missing is logged when next found committed (ensure_logged).
MLflow takes seconds to import, so it is imported inside the methods that use it.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from schemas.config import Config
from schemas.load import dump_config
from schemas.manifest import Manifest
from storage.mlflow.log import log_committed
from storage.mlflow.server import USUAL_PORT
from storage.store import Committed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger("nlac.mlflow")
_P = ParamSpec("_P")
_T = TypeVar("_T")

PromptTexts = Callable[[Committed], Mapping[str, str]]
"""Gives the texts of the templates that a stage rendered, by name."""

LOCK_SECONDS = 60.0
KIND, RUN, ITERATION, STAGE = "nlac.kind", "nlac.run", "nlac.iteration", "nlac.stage"
FOLDER = "nlac.folder"


def _recording(
    method: Callable[Concatenate["Bridge", _P], _T],
) -> Callable[Concatenate["Bridge", _P], _T | None]:
    """Hold the lock, and turn MLflow's own troubles into a warning and None."""

    @functools.wraps(method)
    def guarded(self: "Bridge", /, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with FileLock(self.home / ".lock", timeout=LOCK_SECONDS):
                return method(self, *args, **kwargs)
        except (MlflowException, SQLAlchemyError, OSError, Timeout) as error:
            what = method.__name__.replace("_", " ")
            _log.warning("MLflow store %s: %s failed and is left out: %s", self.home, what, error)
            return None

    return guarded


class Bridge:
    """Writes to the data root's own MLflow store, whatever tracking server the user's environment names.

    Args:
        data_root: the data root.
        prompt_texts: asked when a stage is logged. A text whose digest the manifest names goes into the prompt
            registry. None: no text does.
        ui_url: address of `nlac mlflow-ui`, for links.
    """

    def __init__(
        self,
        data_root: Path,
        prompt_texts: PromptTexts | None = None,
        ui_url: str = f"http://127.0.0.1:{USUAL_PORT}",
    ) -> None:
        self.root = data_root.resolve()
        self.home = self.root / ".mlflow"
        self.ui_url = ui_url
        self._prompt_texts = prompt_texts
        self._client: MlflowClient | None = None

    @property
    def uri(self) -> str:
        """The store's SQLAlchemy address."""
        return f"sqlite:///{self.home / 'mlflow.db'}"

    # --- what happens ---------------------------------------------------------------------------------------

    @_recording
    def start_stage(
        self,
        run: str,
        iteration: int,
        stage: str,
        prefect_flow_run_id: str | None = None,
        prefect_ui_url: str | None = None,
    ) -> str:
        """Begin a child run of the iteration's run.

        Args:
            run: the nlac run; an experiment of that name.
            iteration: its iteration; its MLflow run is made by whoever comes first.
            stage: the stage.
            prefect_flow_run_id: the Prefect run that computes it.
            prefect_ui_url: address of that run in the Prefect UI.

        Returns:
            The MLflow run id; None when MLflow can't be written.
        """
        client, experiment = self._open(), self._experiment(run)
        for lost in self._search(run, {KIND: "stage", ITERATION: str(iteration), STAGE: stage}, "RUNNING"):
            client.set_terminated(
                lost.info.run_id, "KILLED"
            )  # the run's lock says that no such process lives
        tags = _prefect_tags(prefect_flow_run_id, prefect_ui_url)
        return self._child(experiment, run, iteration, stage, int(time.time() * 1000), tags)

    @_recording
    def link(self, run_id: str, prefect_flow_run_id: str, prefect_ui_url: str | None) -> None:
        """Name the Prefect run that computes a stage, where it was not known when the stage's run began."""
        for key, value in _prefect_tags(prefect_flow_run_id, prefect_ui_url).items():
            if value:
                self._open().set_tag(run_id, key, value)

    @_recording
    def finish_stage(self, run_id: str | None, committed: Committed, config: Config) -> str:
        """Log a committed stage and finish its run.

        Args:
            run_id: what start_stage gave; None begins a run now.
            committed: what was committed.
            config: the configuration it was computed with, kept as an artifact.

        Returns:
            The MLflow run id; None when MLflow can't be written.
        """
        return self._log(run_id, committed, config)

    @_recording
    def ensure_logged(self, committed: Committed, config: Config) -> str | None:
        """Log a committed stage if no finished run describes it (MLflow was away, or its database was lost).

        Returns:
            The run that describes it.
        """
        m = committed.manifest
        known = self._search(m.run, {KIND: "stage", FOLDER: self._folder(committed)}, "FINISHED")
        return known[0].info.run_id if known else self._log(None, committed, config)

    @_recording
    def fail_stage(self, run_id: str | None, error: str) -> None:
        """Finish a stage's run as failed, with the reason."""
        if run_id is not None:
            self._open().set_tag(run_id, "nlac.error", error[:5000])
            self._open().set_terminated(run_id, "FAILED")

    @_recording
    def finish_iteration(self, run: str, iteration: int, ok: bool) -> None:
        """Finish the iteration's run."""
        parent = self._parent(self._experiment(run), run, iteration)
        self._open().set_terminated(parent, "FINISHED" if ok else "FAILED")

    def url(self, run_id: str) -> str | None:
        """Where `nlac mlflow-ui` shows a run (at its usual port)."""
        experiment = self._experiment_of(run_id)
        return f"{self.ui_url}/#/experiments/{experiment}/runs/{run_id}" if experiment else None

    # --- how ------------------------------------------------------------------------------------------------

    @_recording
    def _experiment_of(self, run_id: str) -> str:
        return str(self._open().get_run(run_id).info.experiment_id)

    def _open(self) -> "MlflowClient":
        if self._client is None:
            from mlflow import MlflowClient

            for noisy in ("mlflow", "alembic"):
                logging.getLogger(noisy).setLevel(logging.WARNING)
            self._client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        return self._client

    def _experiment(self, run: str) -> str:
        known = self._open().get_experiment_by_name(run)
        if known is not None:
            return str(known.experiment_id)
        location = (self.home / "artifacts" / run).as_uri()
        return str(self._open().create_experiment(run, artifact_location=location, tags={RUN: run}))

    def _search(self, run: str, tags: Mapping[str, str], status: str | None = None) -> "list[Run]":
        wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        wanted += [f"attributes.status = '{status}'"] if status else []
        return list(self._open().search_runs([self._experiment(run)], " and ".join(wanted)))

    def _parent(self, experiment: str, run: str, iteration: int) -> str:
        tags = {KIND: "iteration", RUN: run, ITERATION: str(iteration)}
        known = self._search(run, tags)
        if known:
            return str(known[0].info.run_id)
        created = self._open().create_run(experiment, tags=tags, run_name=f"iteration {iteration}")
        return str(created.info.run_id)

    def _child(
        self,
        experiment: str,
        run: str,
        iteration: int,
        stage: str,
        start: int,
        tags: Mapping[str, str | None],
    ) -> str:
        parent = self._parent(experiment, run, iteration)
        own = {KIND: "stage", RUN: run, ITERATION: str(iteration), STAGE: stage, "mlflow.parentRunId": parent}
        given = {key: str(value) for key, value in tags.items() if value}
        created = self._open().create_run(experiment, start, {**own, **given}, run_name=stage)
        return str(created.info.run_id)

    def _log(self, run_id: str | None, committed: Committed, config: Config) -> str:
        client, m = self._open(), committed.manifest
        experiment = self._experiment(m.run)
        start, end = _times(m)
        if run_id is None:
            tags = {"nlac.prefect_flow_run_id": m.prefect_flow_run_id}
            run_id = self._child(experiment, m.run, m.iteration, m.stage, start, tags)
        parent = self._parent(experiment, m.run, m.iteration)
        texts = self._prompt_texts(committed) if self._prompt_texts else {}
        log_committed(client, experiment, parent, run_id, committed, dump_config(config), texts, end)
        client.set_tag(run_id, FOLDER, self._folder(committed))
        client.set_terminated(run_id, "FINISHED", end)
        return run_id

    def _folder(self, committed: Committed) -> str:
        return committed.path.relative_to(self.root).as_posix()


def _prefect_tags(flow_run_id: str | None, ui_url: str | None) -> dict[str, str | None]:
    note = f"[Prefect run]({ui_url})" if ui_url else None
    return {"nlac.prefect_flow_run_id": flow_run_id, "nlac.prefect_url": ui_url, "mlflow.note.content": note}


def _times(manifest: Manifest) -> tuple[int, int]:
    # A stage's run ends when the stage did, not when it was logged.
    start = datetime.fromisoformat(manifest.started_at).timestamp()
    return int(start * 1000), int((start + manifest.seconds) * 1000)
