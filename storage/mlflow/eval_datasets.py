"""The held-out tasks of a run as evaluation datasets, which MLflow's page "Datasets" shows."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.rows import Episode, Transition
from storage.committed import Committed

if TYPE_CHECKING:
    from mlflow import MlflowClient

DIGEST = "nlac.digest"
SPLITS = ("eval", "validation")


def log_eval_tasks(client: "MlflowClient", experiment_id: str, committed: Committed) -> None:
    """Make a dataset of the tasks of each split that an evaluation played. Later evaluations play the same tasks, and
    make none.

    Args:
        client: the MLflow client.
        experiment_id: whose page shows it.
        committed: the evaluation.
    """
    from mlflow.tracing.client import TracingClient

    m = committed.manifest
    if not {Episode.TABLE, Transition.TABLE} <= m.tables.keys():
        return
    known = {dataset.tags.get(DIGEST) for dataset in client.search_datasets([experiment_id])}
    for split in SPLITS:
        records = _tasks(committed, split)
        digest = hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
        if not records or digest in known:
            continue
        tags = {
            DIGEST: digest,
            "nlac.run": m.run,
            "nlac.split": split,
            "nlac.since_iteration": str(m.iteration),
        }
        made = client.create_dataset(f"{split} tasks of {m.run}", experiment_id=experiment_id, tags=tags)
        # `made.merge_records` would write to the process's tracking store, which may be another one.
        TracingClient(client.tracking_uri).store.upsert_dataset_records(made.dataset_id, records)


def _tasks(committed: Committed, split: str) -> list[dict[str, Any]]:
    """A record for each task of a split, with what is seen first."""
    first = committed.scan(Transition.TABLE).filter(step=0).select("episode_id", "observation")
    tasks = (
        committed.scan(Episode.TABLE)
        .filter(pl.col("split") == split)
        .join(first, on="episode_id", how="left", maintain_order="left")
        .group_by("environment", "task_id", maintain_order=True)
        .agg(pl.col("observation").first())
        .sort("environment", "task_id")
        .collect()
    )
    return [{"inputs": row, "tags": {"split": split}} for row in tasks.iter_rows(named=True)]
