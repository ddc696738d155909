"""Commit given rows as a stage would, without computing anything."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from schemas.frames import to_frame
from schemas.manifest import AdapterEntry, FileEntry, FingerprintInputs, Manifest, folder_name
from schemas.rows import TABLES, Row
from storage.files import sha256_file
from storage.parquet.staged import stage_table
from storage.store import Committed, Store
from tasks.pipeline.fingerprint_inputs import fingerprint_of
from tests.support.rows import episode, transitions


def commit_rows(
    store: Store,
    stage: str,
    iteration: int,
    tables: Mapping[str, Sequence[Row]],
    *,
    run: str = "trial",
    adapters: Mapping[str, Path] | None = None,
    inputs: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
    prompts: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    attempt: int = 1,
    fingerprint_inputs: FingerprintInputs | None = None,
) -> Committed:
    """Commit tables, and adapter folders (kind -> a folder that is moved in), with a true manifest.

    Without `fingerprint_inputs` they are made of config, prompts and inputs.
    """
    fingerprint_inputs = fingerprint_inputs or FingerprintInputs(
        stage=stage, code_version=1, run=run, iteration=iteration, config=dict(config or {}),
        prompts=dict(prompts or {}), models={}, inputs=dict(inputs or {}),
    )  # fmt: skip
    fingerprint = fingerprint_of(fingerprint_inputs)
    with store.staging(run) as folder:
        entries = {
            name: stage_table(folder, TABLES[name], to_frame(TABLES[name], rows))
            for name, rows in tables.items()
        }
        made = {}
        for kind, source in (adapters or {}).items():
            source.rename(folder / kind)
            made[kind] = AdapterEntry(
                folder=kind,
                version=f"{kind}@{iteration:05d}:{folder_name(fingerprint, attempt)}",
                digest=hashlib.sha256(kind.encode()).hexdigest(),
            )
        files = [
            FileEntry(path=str(p.relative_to(folder)), bytes=p.stat().st_size, sha256=sha256_file(p))
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        ]
        manifest = Manifest(
            fingerprint=fingerprint, attempt=attempt, fingerprint_inputs=fingerprint_inputs, tables=entries,
            adapters=made, files=files, rows_in=sum(e.rows for e in entries.values()),
            metrics=dict(metrics or {}), tokens=100,
            started_at="2026-01-01T00:00:00+00:00", seconds=1.5, packages={}, machine="test",
        )  # fmt: skip
        return store.commit(folder, manifest)


def table(store: Store, stage: str, name: str, iteration: int = 0) -> pl.DataFrame:
    """A table that a stage of run "trial" has committed."""
    committed = store.committed("trial", stage, iteration)
    assert committed is not None
    return committed.scan(name).collect()


def commit_episode(store: Store) -> Path:
    """Commit the rollout of one successful episode; its folder."""
    row = episode(success=True)
    return commit_rows(store, "rollout", 0, {"episodes": [row], "transitions": transitions(row)}).path
