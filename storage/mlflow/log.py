"""The content of a stage's MLflow run, written in a few batches, and its part of the training run's curves."""

import json
from collections.abc import Mapping
from pathlib import Path

from schemas.manifest import MANIFEST
from storage.committed import Committed
from storage.mlflow import records
from storage.mlflow.eval_datasets import log_eval_tasks
from storage.mlflow.registry import crown, mirror_prompts, register_adapters
from storage.mlflow.runs import Runs

FINGERPRINT, FOLDER = "nlac.fingerprint", "nlac.folder"
METRICS, PARAMS, DATASETS, TAG_LENGTH = 1000, 100, 1000, 8000  # MLflow's limits per call


def log_committed(
    runs: Runs,
    root: Path,
    run_id: str,
    committed: Committed,
    config: str,
    prompts: Mapping[str, str],
    timestamp: int,
    earlier_steps: int,
) -> None:
    """Log a committed stage to its run, an evaluation's rates to the iteration's run too, and all numbers to the
    training run: by iteration, and by optimizer step over all iterations.

    Args:
        runs: the store.
        root: the data root. Paths are logged relative to it, so that it can be moved.
        run_id: run of the stage.
        committed: what was committed.
        config: the resolved configuration, as YAML.
        prompts: template texts by name.
        timestamp: of the metrics, milliseconds.
        earlier_steps: optimizer steps of this stage in earlier iterations.
    """
    from mlflow.entities import Param, RunTag

    client, m = runs.client, committed.manifest
    experiment = runs.experiment(m.run)
    training, iteration = runs.of_training(m.run), runs.of_iteration(m.run, m.iteration)
    evaluation = records.evaluation_numbers(committed)
    numbers = records.stage_numbers(committed)
    own = records.metrics(numbers | evaluation, timestamp) + records.step_metrics(committed, timestamp)
    by_iteration = evaluation | {f"{m.stage}/{name}": value for name, value in numbers.items()}
    shared = records.metrics(by_iteration, timestamp, m.iteration)
    shared += records.step_metrics(committed, timestamp, f"{m.stage}/", earlier_steps)
    for logged_to, metrics in ((run_id, own), (training, shared)):
        for batch in records.batches(metrics, METRICS):
            client.log_batch(logged_to, metrics=batch)
    params = [Param(key, value) for key, value in records.flatten(m.fingerprint_inputs.config).items()]
    for batch in records.batches(params, PARAMS):
        client.log_batch(run_id, params=batch)
    for batch in records.batches(records.datasets(committed, root), DATASETS):
        client.log_inputs(run_id, batch)
    about = {
        FINGERPRINT: m.fingerprint,
        FOLDER: committed.path.relative_to(root).as_posix(),
        "nlac.attempt": str(m.attempt),
        "nlac.machine": m.machine,
        "nlac.packages": json.dumps(m.packages),
        "nlac.models": json.dumps(m.fingerprint_inputs.models),
    }
    client.log_batch(run_id, tags=[RunTag(key, value[:TAG_LENGTH]) for key, value in about.items()])
    runs.write_artifact(m.run, run_id, "config.yaml", config.encode())
    runs.write_artifact(m.run, run_id, MANIFEST, (committed.path / MANIFEST).read_bytes())
    mirror_prompts(client, experiment, run_id, committed, prompts)
    register_adapters(client, experiment, run_id, committed, root)
    if evaluation:
        client.log_batch(iteration, metrics=records.metrics(evaluation, timestamp, m.iteration))
        crown(client, committed)
        log_eval_tasks(client, experiment, committed)
