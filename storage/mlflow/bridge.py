"""Logs committed stages in MLflow: a run per training run, below it one per iteration, below that one per stage.

    <data>/.mlflow/                     the store and its lock (`storage.mlflow.backend`)
    <data>/.mlflow/artifacts/<run>/     what is logged with a run: manifest.json, config.yaml

MLflow is a mirror: nothing reads it back. A store that can't be written is a warning in the log, not a failed stage. A
stage that is missing there is logged when it is next found committed (`ensure_logged`). MLflow takes seconds to import,
so the methods that use it import it.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from filelock import Timeout

from schemas.config import Config
from schemas.load import ConfigError, dump_config
from schemas.manifest import Manifest
from schemas.rows import TrainingStep
from schemas.shown import link, visible
from storage.committed import Committed
from storage.databases import DatabaseError
from storage.mlflow import registry
from storage.mlflow.backend import Backend
from storage.mlflow.log import FOLDER, TAG_LENGTH, log_committed
from storage.mlflow.runs import ITERATION, KIND, STAGE, Runs
from storage.mlflow.server import USUAL_PORT
from storage.mlflow.traces import EpisodeTrace, write_trace
from storage.store import Store

_log = logging.getLogger("nlac.mlflow")
_P = ParamSpec("_P")
_T = TypeVar("_T")

PromptTexts = Callable[[Committed], Mapping[str, str]]
"""Gives the texts of the templates that a stage rendered, by name."""

NOTE = "mlflow.note.content"


def _recording(
    method: Callable[Concatenate["Bridge", _P], _T],
) -> Callable[Concatenate["Bridge", _P], _T | None]:
    """Hold the lock, and turn MLflow's own errors into a warning and None."""

    @wraps(method)
    def guarded(self: "Bridge", /, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self.backend.writing():
                return method(self, *args, **kwargs)
        except (ConfigError, DatabaseError, MlflowException, SQLAlchemyError, OSError, Timeout) as error:
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
        self.backend = Backend(self.root)
        self.home = self.backend.home
        self.ui_url = ui_url
        self._prompt_texts = prompt_texts

    @property
    def uri(self) -> str:
        """The store's SQLAlchemy address, which may hold a password."""
        return self.backend.uri()

    @cached_property
    def _runs(self) -> Runs:
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        return Runs(MlflowClient(tracking_uri=self.uri, registry_uri=self.uri), self.home)

    @_recording
    def prepare(self) -> None:
        """Import MLflow and create the database where there is none, which takes seconds."""
        self._runs.client.search_experiments(max_results=1)

    @_recording
    def aliased_sources(self) -> list[str]:
        """Folders of the adapters that an alias of the registry names; None when MLflow can't be read."""
        return registry.aliased_sources(self._runs.client, self.root)

    @_recording
    def forget_run(self, run: str) -> bool:
        """Delete a run's experiment and model versions; None when MLflow can't be written."""
        registry.forget_adapters(self._runs.client, run)
        self._runs.forget(run)
        return True

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
            iteration: its iteration, whose MLflow run is made if there is none.
            stage: the stage.
            prefect_flow_run_id: the Prefect run that computes it.
            prefect_ui_url: address of that run in the Prefect UI.

        Returns:
            The MLflow run id; None when MLflow can't be written.
        """
        for lost in self._runs.search(
            run, {KIND: "stage", ITERATION: str(iteration), STAGE: stage}, "RUNNING"
        ):
            # The caller holds the run's lock, so the process that began this one is gone.
            self._runs.client.set_terminated(lost.info.run_id, "KILLED")
        tags = _prefect_tags(prefect_flow_run_id, prefect_ui_url)
        return self._runs.begin_stage(run, iteration, stage, int(time.time() * 1000), tags)

    @_recording
    def link(self, run_id: str, prefect_flow_run_id: str, prefect_ui_url: str | None) -> None:
        """Name the Prefect run that computes a stage, where it was not known when the stage's run began."""
        for key, value in _prefect_tags(prefect_flow_run_id, prefect_ui_url).items():
            if value:
                self._runs.client.set_tag(run_id, key, value)

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
        known = self._runs.search(m.run, {KIND: "stage", FOLDER: self._folder(committed)}, "FINISHED")
        return known[0].info.run_id if known else self._log(None, committed, config)

    @_recording
    def fail_stage(self, run_id: str | None, error: str) -> None:
        """Finish a stage's run as failed, with the reason."""
        if run_id is not None:
            self._runs.client.set_tag(run_id, "nlac.error", visible(error)[:5000])
            self._runs.client.set_terminated(run_id, "FAILED")

    @_recording
    def begin_iteration(self, run: str, iteration: int) -> None:
        """Show an iteration and its training run as running. A stage that is computed alone does not."""
        self._runs.going_on(run, iteration)

    @_recording
    def finish_iteration(self, run: str, iteration: int, ok: bool) -> None:
        """Finish the iteration's run, and the training run, which the next iteration opens again."""
        for run_id in (self._runs.of_iteration(run, iteration), self._runs.of_training(run)):
            self._runs.client.set_terminated(run_id, "FINISHED" if ok else "FAILED")

    @_recording
    def note_iteration(self, run: str, iteration: int, page: str) -> None:
        """Show a page of Markdown in the iteration's run."""
        self._runs.client.set_tag(self._runs.of_iteration(run, iteration), NOTE, page[:TAG_LENGTH])

    @_recording
    def log_traces(self, run: str, iteration: int, traces: Iterable[EpisodeTrace]) -> int:
        """Write episodes as traces linked to the iteration's run.

        Returns:
            How many were new; None when MLflow can't be written.
        """
        linked = self._runs.of_iteration(run, iteration)
        start, experiment = self._runs.client.get_run(linked).info.start_time, self._runs.experiment(run)
        return sum(write_trace(self.uri, experiment, linked, trace, start) for trace in traces)

    def url(self, run_id: str) -> str | None:
        """Where `nlac mlflow-ui` shows a run (at its usual port)."""
        experiment = self._experiment_of(run_id)
        return f"{self.ui_url}/#/experiments/{experiment}/runs/{run_id}" if experiment else None

    @_recording
    def _experiment_of(self, run_id: str) -> str:
        return str(self._runs.client.get_run(run_id).info.experiment_id)

    def _log(self, run_id: str | None, committed: Committed, config: Config) -> str:
        client, m = self._runs.client, committed.manifest
        start, end = _times(m)
        if run_id is None:
            tags = {"nlac.prefect_flow_run_id": m.prefect_flow_run_id}
            run_id = self._runs.begin_stage(m.run, m.iteration, m.stage, start, tags)
        texts = self._prompt_texts(committed) if self._prompt_texts else {}
        said, earlier = dump_config(config, masked=True), self._earlier_steps(m)
        log_committed(self._runs, self.root, run_id, committed, said, texts, end, earlier)
        client.set_terminated(run_id, "FINISHED", end)
        return run_id

    def _earlier_steps(self, manifest: Manifest) -> int:
        """Optimizer steps that a training stage took in earlier iterations of its run."""
        if TrainingStep.TABLE not in manifest.tables:
            return 0
        store = Store(self.root)
        before = (store.committed(manifest.run, manifest.stage, n) for n in range(manifest.iteration))
        return sum(c.manifest.tables[TrainingStep.TABLE].rows for c in before if c is not None)

    def _folder(self, committed: Committed) -> str:
        return committed.path.relative_to(self.root).as_posix()


def _prefect_tags(flow_run_id: str | None, ui_url: str | None) -> dict[str, str | None]:
    note = link("Prefect run", ui_url) if ui_url else None
    return {"nlac.prefect_flow_run_id": flow_run_id, "nlac.prefect_url": ui_url, NOTE: note}


def _times(manifest: Manifest) -> tuple[int, int]:
    # A stage's run ends when the stage ended, not when it was logged.
    start = datetime.fromisoformat(manifest.started_at).timestamp()
    return int(start * 1000), int((start + manifest.seconds) * 1000)
