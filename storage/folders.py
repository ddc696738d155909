"""Every committed folder of a store, current or not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.manifest import Current, Summary
from storage.committed import StoreError
from storage.places import names_in
from storage.sql.catalog import State
from storage.store import Store

_ITERATION = "iteration="


@dataclass(frozen=True)
class Folder:
    """A committed stage folder and whether it is current."""

    path: Path
    manifest: Summary
    state: State


def folders(store: Store, problems: list[str], only: str | None = None) -> Iterator[Folder]:
    """Every committed folder, superseded ones too, by run, iteration and time. Each manifest is read once.

    Args:
        store: the store.
        problems: what is gone or broken is appended here, by name: the data root, `current.json`, manifests.
        only: a run, to leave out all others.
    """
    store = store.snapshot()
    if not store.root.is_dir():
        problems.append(f"{store}: no such data root; name the right one with --data or NLAC_DATA")
    for run in (name for name in names_in(store.root) if only in (None, name)):
        stages = set(names_in(store.run_dir(run))) - {"iterations"}
        for iteration in iterations_of(store, run):
            current, lost = _current(store, run, iteration)
            found = [
                folder
                for stage in sorted({*stages, *current.stages})
                for folder in _stage_folders(store, run, stage, iteration, current, problems)
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
    shown = store.place.shown(path)
    gone = f"{shown}: gone, so none of the iteration's output is current; `nlac verify --repair` rebuilds it"
    return current, None if path.exists() else gone


def _stage_folders(
    store: Store, run: str, stage: str, iteration: int, current: Current, problems: list[str]
) -> Iterator[Folder]:
    home, entry = store.stage_dir(run, stage, iteration), current.stages.get(stage)
    for name in sorted({*names_in(home), *([entry.folder] if entry else ())}):
        try:
            manifest = store.summary(home / name)
        except StoreError as error:
            problems.append(str(error))
            continue
        state: State = "superseded"
        if entry is not None and entry.folder == name:
            state = "stale" if entry.stale else "current"
        yield Folder(home / name, manifest, state)
