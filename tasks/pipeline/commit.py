"""From a stage's output to a committed folder: tables written and checked, digests taken, the manifest
made."""

import platform
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from schemas.frames import to_frame
from schemas.manifest import (
    AdapterEntry,
    FileEntry,
    FingerprintInputs,
    Lineage,
    Manifest,
    TableEntry,
    folder_name,
)
from storage.files import sha256_file
from storage.parquet.staged import stage_table
from storage.store import Committed, Store
from tasks.runtime.stage import Output, Stage
from tasks.training.adapters import adapter_digest

PACKAGES = (
    "nlac",
    "torch",
    "transformers",
    "peft",
    "polars",
    "duckdb",
    "pydantic",
    "prefect",
    "mlflow",
    "textarena",
)


def commit_output(
    store: Store,
    stage: Stage,
    output: Output,
    *,
    fingerprint_inputs: FingerprintInputs,
    fingerprint: str,
    attempt: int,
    workdir: Path,
    tokens: int,
    started: datetime,
    seconds: float,
    lineage: Lineage,
) -> Committed:
    """Write a stage's tables beside whatever it left in `workdir`, and commit the folder.

    Raises:
        ValueError: the output's tables are not those the stage declares.
    """
    if set(output.tables) != {model.TABLE for model in stage.tables}:
        raise ValueError(f"{stage.name} gave tables {sorted(output.tables)}, it declares others")
    tables = {
        model.TABLE: stage_table(workdir, model, to_frame(model, output.tables[model.TABLE]))
        for model in stage.tables
    }
    return commit_folder(
        store,
        workdir,
        tables,
        output,
        fingerprint_inputs=fingerprint_inputs,
        fingerprint=fingerprint,
        attempt=attempt,
        tokens=tokens,
        started=started,
        seconds=seconds,
        lineage=lineage,
    )


def commit_folder(
    store: Store,
    workdir: Path,
    tables: Mapping[str, TableEntry],
    output: Output,
    *,
    fingerprint_inputs: FingerprintInputs,
    fingerprint: str,
    attempt: int,
    tokens: int,
    started: datetime,
    seconds: float,
    lineage: Lineage,
) -> Committed:
    """Commit a folder whose tables are written already; of `output` all else counts."""
    name = folder_name(fingerprint, attempt)
    files = [p for p in sorted(workdir.rglob("*")) if p.is_file() and p.name != "stage.log"]
    manifest = Manifest(
        fingerprint=fingerprint,
        attempt=attempt,
        fingerprint_inputs=fingerprint_inputs,
        tables=dict(tables),
        adapters={
            kind: AdapterEntry(
                folder=folder,
                version=f"{kind}@{fingerprint_inputs.iteration:05d}:{name}",
                digest=adapter_digest(workdir / folder),
            )
            for kind, folder in output.adapters.items()
        },
        files=[
            FileEntry(path=str(p.relative_to(workdir)), bytes=p.stat().st_size, sha256=sha256_file(p))
            for p in files
        ],
        rows_in=output.rows_in,
        metrics=output.metrics,
        tokens=tokens,
        started_at=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        packages=_versions(),
        machine=f"{platform.machine()} {platform.system()} python {platform.python_version()}",
        prefect_flow_run_id=lineage.prefect_flow_run_id,
        mlflow_run_id=lineage.mlflow_run_id,
    )
    return store.commit(workdir, manifest)


@cache
def _versions() -> dict[str, str]:
    # Reading them takes 60 ms, and a process runs the versions that it began with.
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
