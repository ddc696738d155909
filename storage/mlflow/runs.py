"""Finding and creating MLflow's experiments and runs: one experiment per run of nlac."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

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

    def experiment(self, run: str) -> str:
        """The id of a run's experiment; it is made if there is none."""
        known = self.client.get_experiment_by_name(run)
        if known is not None:
            return str(known.experiment_id)
        location = (self._home / "artifacts" / run).as_uri()
        return str(self.client.create_experiment(run, artifact_location=location, tags={RUN: run}))

    def forget(self, run: str) -> None:
        """Delete a run's experiment. MLflow keeps the name of a deleted one, so it gets another before."""
        known = self.client.get_experiment_by_name(run)
        if known is not None:
            self.client.rename_experiment(known.experiment_id, f"{run}, deleted {known.experiment_id}")
            self.client.delete_experiment(known.experiment_id)
            shutil.rmtree(self._home / "artifacts" / run, ignore_errors=True)

    def search(self, run: str, tags: Mapping[str, str], status: str | None = None) -> "list[Run]":
        """The MLflow runs of a run of nlac that have these tags and this status."""
        wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        wanted += [f"attributes.status = '{status}'"] if status else []
        return list(self.client.search_runs([self.experiment(run)], " and ".join(wanted)))

    def of_iteration(self, run: str, iteration: int) -> str:
        """The id of an iteration's MLflow run; it is made if there is none."""
        tags = {KIND: "iteration", RUN: run, ITERATION: str(iteration)}
        known = self.search(run, tags)
        if known:
            return str(known[0].info.run_id)
        experiment = self.experiment(run)
        return str(
            self.client.create_run(experiment, tags=tags, run_name=f"iteration {iteration}").info.run_id
        )

    def begin_stage(
        self, run: str, iteration: int, stage: str, start: int, tags: Mapping[str, str | None]
    ) -> str:
        """Create a stage's run below its iteration's; `start` is in milliseconds since the epoch. Gives its id."""
        parent = self.of_iteration(run, iteration)
        own = {KIND: "stage", RUN: run, ITERATION: str(iteration), STAGE: stage, "mlflow.parentRunId": parent}
        given = {key: str(value) for key, value in tags.items() if value}
        created = self.client.create_run(self.experiment(run), start, {**own, **given}, run_name=stage)
        return str(created.info.run_id)
