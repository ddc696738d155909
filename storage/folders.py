"""Every committed folder of a store, current or not."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.manifest import Current, Summary
from storage.committed import StoreError, read_summary
from storage.sql.catalog import State
from storage.store import Store

_ITERATION = "iteration="


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
        problems: what is gone or broken is appended here, by name: the data root, `current.json`, manifests.
    """
    if not store.root.is_dir():
        problems.append(f"{store.root}: no such data root; name the right one with --data or NLAC_DATA")
    for run in names_in(store.root):
        stages = set(names_in(store.run_dir(run))) - {"iterations"}
        for iteration in iterations_of(store, run):
            current, lost = _current(store, run, iteration)
            found = [
                folder
                for stage in sorted({*stages, *current.stages})
                for folder in _stage_folders(store.stage_dir(run, stage, iteration), stage, current, problems)
            ]
            if lost and (found or store.current_path(run, iteration).exists()):
                problems.append(lost)
            yield from sorted(found, key=lambda folder: folder.manifest.started_at)


def iterations_of(store: Store, run: str) -> list[int]:
    """The iterations of a run that have a folder of their own, or a stage's, ascending."""
    found = set(store.iterations(run))
    for stage in names_in(store.run_dir(run)):
        parts = (name.partition(_ITERATION) for name in names_in(store.run_dir(run) / stage))
        found |= {int(number) for _, _, number in parts if number.isdecimal()}
    return sorted(found)


def _current(store: Store, run: str, iteration: int) -> tuple[Current, str | None]:
    """`current.json`, and what is wrong with it."""
    path = store.current_path(run, iteration)
    try:
        current = store.current(run, iteration)
    except StoreError as error:
        return Current(), str(error)
    gone = f"{path}: gone, so none of the iteration's output is current; `nlac verify --repair` rebuilds it"
    return current, None if path.exists() else gone


def _stage_folders(home: Path, stage: str, current: Current, problems: list[str]) -> Iterator[Folder]:
    entry = current.stages.get(stage)
    for name in sorted({*names_in(home), *([entry.folder] if entry else ())}):
        try:
            manifest = read_summary(home / name)
        except StoreError as error:
            problems.append(str(error))
            continue
        state: State = "superseded"
        if entry is not None and entry.folder == name:
            state = "stale" if entry.stale else "current"
        yield Folder(home / name, manifest, state)


def names_in(home: Path) -> list[str]:
    """The folders in a folder, without hidden ones, sorted; none where it does not exist."""
    try:
        with os.scandir(home) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
