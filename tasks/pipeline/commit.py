"""From a stage's output to a committed folder: tables written and checked, digests taken, the manifest made."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path

from schemas.frames import to_frame
from schemas.manifest import (
    AdapterEntry,
    FileEntry,
    FingerprintInputs,
    Manifest,
    OrchestrationIds,
    RoleCost,
    TableEntry,
    folder_name,
)
from storage.files import sha256_file
from storage.parquet.staged import stage_table
from storage.store import Committed, Store
from tasks.pipeline.fingerprint_inputs import fingerprint_of
from tasks.runtime.collector import collector_paused
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


@dataclass(frozen=True)
class StageRun:
    """One computation of a stage, from its beginning.

    Attributes:
        fingerprint_inputs: what determines its output.
        fingerprint: over those.
        attempt: its number among those with this fingerprint.
        orchestration: ids of the runs that show it.
        started: wall-clock time, for people.
        clock: monotonic seconds at the start.
        earlier: beginning and seconds of each of its shards.
    """

    fingerprint_inputs: FingerprintInputs
    fingerprint: str
    attempt: int
    orchestration: OrchestrationIds = field(default_factory=OrchestrationIds)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    earlier: tuple[tuple[datetime, float], ...] = ()

    @property
    def seconds(self) -> float:
        """Time in which it was computed: since it began, and before that while any of its shards was computed."""
        covered, end = 0.0, None
        for started, seconds in sorted((*self.earlier, (self.started, time.monotonic() - self.clock))):
            over = started + timedelta(seconds=seconds)
            covered += max(0.0, (over - max(started, end or started)).total_seconds())
            end = max(over, end or over)
        return covered

    @property
    def folder(self) -> str:
        """Name of the folder that is committed."""
        return folder_name(self.fingerprint, self.attempt)


def begin_run(
    store: Store,
    fingerprint_inputs: FingerprintInputs,
    orchestration: OrchestrationIds | None = None,
    attempt: int | None = None,
) -> StageRun:
    """A new attempt at a stage. Its number is the one that was decided on, or the next."""
    fingerprint = fingerprint_of(fingerprint_inputs)
    attempt = attempt or store.next_attempt(fingerprint_inputs, fingerprint)
    return StageRun(fingerprint_inputs, fingerprint, attempt, orchestration or OrchestrationIds())


def commit_output(
    store: Store,
    run: StageRun,
    stage: Stage,
    output: Output,
    workdir: Path,
    tokens: int,
    roles: Mapping[str, RoleCost] | None = None,
) -> Committed:
    """Write a stage's tables beside whatever it left in `workdir`, and commit the folder.

    Raises:
        ValueError: the output's tables are not those the stage declares.
    """
    if set(output.tables) != {model.TABLE for model in stage.writes}:
        raise ValueError(f"{stage.name} gave tables {sorted(output.tables)}, it declares others")
    with collector_paused():
        tables = {
            model.TABLE: stage_table(workdir, model, to_frame(model, output.tables[model.TABLE]))
            for model in stage.writes
        }
    return commit_folder(store, run, tables, output, workdir, tokens, roles)


def commit_folder(
    store: Store,
    run: StageRun,
    tables: Mapping[str, TableEntry],
    output: Output,
    workdir: Path,
    tokens: int = 0,
    roles: Mapping[str, RoleCost] | None = None,
) -> Committed:
    """Commit a folder whose tables are written already.

    Args:
        store: the artifact store.
        run: the computation.
        tables: entries of the tables in `workdir`.
        output: all but its tables counts.
        workdir: the staging folder.
        tokens: generated, scored or trained on.
        roles: what each role's requests cost.
    """
    files = [p for p in sorted(workdir.rglob("*")) if p.is_file() and p.name != "stage.log"]
    manifest = Manifest(
        fingerprint=run.fingerprint,
        attempt=run.attempt,
        fingerprint_inputs=run.fingerprint_inputs,
        tables=dict(tables),
        adapters={
            kind: AdapterEntry(
                folder=folder,
                version=f"{kind}@{run.fingerprint_inputs.iteration:05d}:{run.folder}",
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
        roles=dict(roles or {}),
        tokens=tokens,
        started_at=run.started.isoformat(timespec="seconds"),
        seconds=round(run.seconds, 3),
        packages=_versions(),
        machine=f"{platform.machine()} {platform.system()} python {platform.python_version()}",
        prefect_flow_run_id=run.orchestration.prefect_flow_run_id,
        mlflow_run_id=run.orchestration.mlflow_run_id,
    )
    return store.commit(workdir, manifest)


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
