"""The content of a stage's MLflow run, written in a few batches."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from storage.committed import Committed
from storage.mlflow import records
from storage.mlflow.registry import crown, mirror_prompts, register_adapters

if TYPE_CHECKING:
    from mlflow import MlflowClient

FINGERPRINT = "nlac.fingerprint"
METRICS, PARAMS, DATASETS, TAG_LENGTH = 1000, 100, 1000, 8000  # MLflow's limits per call


def log_committed(
    client: "MlflowClient",
    experiment: str,
    parent: str,
    run_id: str,
    committed: Committed,
    config: str,
    prompts: Mapping[str, str],
    timestamp: int,
) -> None:
    """Log a committed stage to its run, and an evaluation's rates to the iteration's run too.

    Args:
        client: the MLflow client.
        experiment: id of the experiment.
        parent: run of the iteration.
        run_id: run of the stage.
        committed: what was committed.
        config: the resolved configuration, as YAML.
        prompts: template texts by name.
        timestamp: of the metrics, milliseconds.
    """
    from mlflow.entities import Param, RunTag

    m = committed.manifest
    evaluation = records.evaluation_numbers(committed)
    numbers = records.metrics(records.stage_numbers(committed) | evaluation, timestamp)
    for batch in records.batches(numbers + records.step_metrics(committed, timestamp), METRICS):
        client.log_batch(run_id, metrics=batch)
    params = [Param(key, value) for key, value in records.flatten(m.fingerprint_inputs.config).items()]
    for batch in records.batches(params, PARAMS):
        client.log_batch(run_id, params=batch)
    for batch in records.batches(records.datasets(committed), DATASETS):
        client.log_inputs(run_id, batch)
    about = {
        FINGERPRINT: m.fingerprint,
        "nlac.data": str(committed.path),
        "nlac.attempt": str(m.attempt),
        "nlac.machine": m.machine,
        "nlac.packages": json.dumps(m.packages),
        "nlac.models": json.dumps(m.fingerprint_inputs.models),
    }
    client.log_batch(run_id, tags=[RunTag(key, value[:TAG_LENGTH]) for key, value in about.items()])
    client.log_text(run_id, config, "config.yaml")
    client.log_artifact(run_id, str(committed.path / "manifest.json"))
    mirror_prompts(client, experiment, run_id, committed, prompts)
    register_adapters(client, experiment, run_id, committed)
    if evaluation:
        client.log_batch(parent, metrics=records.metrics(evaluation, timestamp, m.iteration))
        crown(client, committed)
