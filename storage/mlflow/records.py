"""A committed stage as MLflow's parameters, metrics and dataset versions: pure conversions."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.rows import Evaluation, TrainingStep
from storage.committed import Committed

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric

STEP_METRICS = (
    "loss",
    "critic_loss",
    "policy_loss",
    "chat_loss",
    "demonstration_loss",
    "anchor_kl",
    "value_loss",
    "clipped_share",
    "old_kl",
    "engine_gap_mean",
    "engine_gap_max",
    "engine_k3",
    "learning_rate",
    "grad_norm",
    "label_tokens",
    "tokens",
    "rows",
)
DIGEST_LENGTH = 32  # MLflow takes 36 characters at most

Numbers = dict[str, float]

_INPUT = re.compile(r"([^@]+)@\d+[./](.+)")  # stage@iteration.table, or stage@iteration/file


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names; lists and other values as JSON."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def stage_numbers(committed: Committed) -> Numbers:
    """A stage's own metrics, and its counts and time."""
    m = committed.manifest
    counts: Numbers = {"rows_in": m.rows_in, "tokens": m.tokens, "seconds": m.seconds}
    for name, entry in m.tables.items():
        counts |= {f"{name}.rows": entry.rows, f"{name}.rejected": entry.rejected}
        counts |= {f"{name}.{status}": rows for status, rows in entry.statuses.items() if status != "ok"}
    return counts | dict(m.metrics)


def evaluation_numbers(committed: Committed) -> Numbers:
    """Rates of an evaluation, on validation tasks as validation_<name>; empty for a stage that evaluates nothing."""
    if Evaluation.TABLE not in committed.manifest.tables:
        return {}
    return {
        f"validation_{name}" if row["split"] == "validation" else name: float(value)
        for row in committed.scan(Evaluation.TABLE).collect().iter_rows(named=True)
        for name, value in row.items()
        if isinstance(value, int | float) and name != "iteration"
    }


def metrics(numbers: Numbers, timestamp: int, step: int = 0) -> "list[Metric]":
    """MLflow's metrics; characters that it refuses in a name become '_'."""
    from mlflow.entities import Metric

    return [Metric(_metric_name(name), float(value), timestamp, step) for name, value in numbers.items()]


def step_metrics(committed: Committed, timestamp: int, prefix: str = "", first: int = 0) -> "list[Metric]":
    """The history of a training stage: one value per metric and optimizer step.

    Args:
        committed: the stage.
        timestamp: milliseconds.
        prefix: of the metrics' names.
        first: number of the stage's first step.
    """
    from mlflow.entities import Metric

    if TrainingStep.TABLE not in committed.manifest.tables:
        return []
    steps = committed.scan(TrainingStep.TABLE).select("step", *STEP_METRICS).collect()
    return [
        Metric(f"{prefix}train.{name}", float(row[name]), timestamp, first + row["step"])
        for row in steps.iter_rows(named=True)
        for name in STEP_METRICS
        if row[name] is not None
    ]


def datasets(committed: Committed, root: Path) -> "list[DatasetInput]":
    """The tables a stage read and wrote, each version named by our own digest of its rows.

    MLflow has dataset inputs only, so the tag mlflow.data.context tells written tables ('output') from read ones
    ('input'). A table has the same name and digest in both, so a reader leads to its writer. Paths are relative to the
    data root.
    """
    m = committed.manifest
    written = [
        _dataset(
            f"{m.stage}.{name}",
            entry.digest,
            (committed.path / entry.file).relative_to(root).as_posix(),
            {"num_rows": entry.rows},
            "output",
        )
        for name, entry in m.tables.items()
    ]
    read = [
        _dataset(f"{made[1]}.{made[2]}", digest, key, {}, "input")
        for key, digest in m.fingerprint_inputs.inputs.items()
        if (made := _INPUT.fullmatch(key))
    ]
    return written + read


def _dataset(name: str, digest: str, uri: str, profile: Mapping[str, int], context: str) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": uri})
    dataset = Dataset(name, digest[:DIGEST_LENGTH], "local", source, profile=json.dumps(profile))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def _metric_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


def batches(items: Iterable[Any], size: int) -> list[list[Any]]:
    """A list cut into pieces of at most `size`."""
    listed = list(items)
    return [listed[i : i + size] for i in range(0, len(listed), size)]
