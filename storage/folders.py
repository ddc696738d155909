"""Every committed folder of a store, current or not."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.manifest import Current, Summary
from storage.committed import StoreError, read_summary
from storage.sql.catalog import State
from storage.store import Store


@dataclass(frozen=True)
class Folder:
    """A committed stage folder and whether it is current."""

    path: Path
    manifest: Summary
    state: State


def folders(store: Store, problems: list[str]) -> Iterator[Folder]:
    """Every committed folder, superseded ones too, by run, iteration and time. Each manifest is read once.

    Args:
        store: the store.
        problems: broken `current.json` and manifests are appended here, by name.
    """
    for run in store.runs():
        stages = [name for name in _folders_in(store.run_dir(run)) if name != "iterations"]
        for iteration in store.iterations(run):
            try:
                current = store.current(run, iteration)
            except StoreError as error:
                problems.append(str(error))
                continue
            found = [
                folder
                for stage in stages
                for folder in _stage_folders(store.stage_dir(run, stage, iteration), stage, current, problems)
            ]
            yield from sorted(found, key=lambda folder: folder.manifest.started_at)


def _stage_folders(home: Path, stage: str, current: Current, problems: list[str]) -> Iterator[Folder]:
    entry = current.stages.get(stage)
    for name in sorted({*_folders_in(home), *([entry.folder] if entry else ())}):
        try:
            manifest = read_summary(home / name)
        except StoreError as error:
            problems.append(str(error))
            continue
        state: State = "superseded"
        if entry is not None and entry.folder == name:
            state = "stale" if entry.stale else "current"
        yield Folder(home / name, manifest, state)


def _folders_in(home: Path) -> list[str]:
    try:
        with os.scandir(home) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
