"""Finding and creating MLflow's experiments and runs: one experiment per run of nlac.

In it a training run stands above the iterations, and each iteration above its stages.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LAST_MILLISECOND = 2**53
PARENT = "mlflow.parentRunId"
KIND, RUN, ITERATION, STAGE = "nlac.kind", "nlac.run", "nlac.iteration", "nlac.stage"


class Runs:
    """The runs in one MLflow store, found by their tags.

    Args:
        client: the MLflow client.
        home: the folder of the store.
    """

    def __init__(self, client: "MlflowClient", home: Path) -> None:
        self.client = client
        self._home = home
        self._hide_default()

    def _hide_default(self) -> None:
        """Delete the experiment `Default` that MLflow makes in each store, if nothing is in it: the default run of
        nlac has an experiment `default`."""
        known = self.client.get_experiment_by_name("Default")
        if known is None or known.experiment_id != "0" or known.lifecycle_stage != "active":
            return
        if not self.client.search_runs(["0"], max_results=1):
            self.client.rename_experiment("0", "Default of MLflow")
            self.client.delete_experiment("0")

    def experiment(self, run: str) -> str:
        """The id of a run's experiment; it is made if there is none."""
        known = self.client.get_experiment_by_name(run)
        if known is not None:
            return str(known.experiment_id)
        # Served by `nlac mlflow-ui` from the store's folder, wherever that is moved to.
        location = f"mlflow-artifacts:/{run}"
        return str(self.client.create_experiment(run, artifact_location=location, tags={RUN: run}))

    def write_artifact(self, run: str, run_id: str, name: str, content: bytes) -> None:
        """Write a file where MLflow's server finds it as an artifact of an MLflow run."""
        folder = self._home / "artifacts" / run / run_id / "artifacts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    def forget(self, run: str) -> None:
        """Delete a run's experiment. MLflow keeps the name of a deleted one, so it gets another before."""
        known = self.client.get_experiment_by_name(run)
        if known is not None:
            for dataset in self.client.search_datasets([known.experiment_id]):
                self.client.delete_dataset(dataset.dataset_id)
            self.client.delete_traces(known.experiment_id, max_timestamp_millis=LAST_MILLISECOND)
            self.client.rename_experiment(known.experiment_id, f"{run}, deleted {known.experiment_id}")
            self.client.delete_experiment(known.experiment_id)
            shutil.rmtree(self._home / "artifacts" / run, ignore_errors=True)

    def search(self, run: str, tags: Mapping[str, str], status: str | None = None) -> "list[Run]":
        """The MLflow runs of a run of nlac that have these tags and this status."""
        wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        wanted += [f"attributes.status = '{status}'"] if status else []
        return list(self.client.search_runs([self.experiment(run)], " and ".join(wanted)))

    def of_training(self, run: str) -> str:
        """The id of the MLflow run that stands for the whole training run; it is made if there is none."""
        return self._known_or_new(run, run, {KIND: "training", RUN: run})

    def of_iteration(self, run: str, iteration: int) -> str:
        """The id of an iteration's MLflow run; it is made if there is none."""
        tags = {KIND: "iteration", RUN: run, ITERATION: str(iteration)}
        return self._known_or_new(run, f"iteration {iteration}", tags, parent=self.of_training(run))

    def _known_or_new(self, run: str, name: str, tags: Mapping[str, str], parent: str | None = None) -> str:
        known = self.search(run, tags)
        if known:
            return str(known[0].info.run_id)
        given = {**tags, PARENT: parent} if parent else dict(tags)
        return str(self.client.create_run(self.experiment(run), tags=given, run_name=name).info.run_id)

    def going_on(self, run: str, iteration: int) -> None:
        """Show an iteration and its training run as running, which earlier work may have ended."""
        for run_id in (self.of_training(run), self.of_iteration(run, iteration)):
            if self.client.get_run(run_id).info.status != "RUNNING":
                self.client.update_run(run_id, status="RUNNING")

    def begin_stage(
        self, run: str, iteration: int, stage: str, start: int, tags: Mapping[str, str | None]
    ) -> str:
        """Create a stage's run below its iteration's; `start` is in milliseconds since the epoch. Gives its id."""
        parent = self.of_iteration(run, iteration)
        own = {KIND: "stage", RUN: run, ITERATION: str(iteration), STAGE: stage, PARENT: parent}
        given = {key: str(value) for key, value in tags.items() if value}
        created = self.client.create_run(self.experiment(run), start, {**own, **given}, run_name=stage)
        return str(created.info.run_id)
