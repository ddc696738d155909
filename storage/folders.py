"""Every committed folder of a store, whether or not it still counts."""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.manifest import Current
from storage.catalog import State
from storage.store import Committed, Store, StoreError, read_manifest


@dataclass(frozen=True)
class Folder:
    """A committed stage folder and whether it counts."""

    committed: Committed
    state: State


def folders(store: Store, problems: list[str]) -> Iterator[Folder]:
    """Every committed folder, superseded ones too, each manifest read once, by run, iteration and time.

    Args:
        store: the store.
        problems: broken `current.json` and manifests are appended here, by name.
    """
    for run in store.runs():
        stages = sorted(
            p.name for p in store.run_dir(run).glob("[!.]*") if p.is_dir() and p.name != "iterations"
        )
        for iteration in store.iterations(run):
            try:
                current = store.current(run, iteration)
            except StoreError as error:
                problems.append(str(error))
                continue
            found = [
                f for stage in stages for f in _stage_folders(store, run, iteration, stage, current, problems)
            ]
            yield from sorted(found, key=lambda folder: folder.committed.manifest.started_at)


def _stage_folders(
    store: Store, run: str, iteration: int, stage: str, current: Current, problems: list[str]
) -> Iterator[Folder]:
    home, entry = store.stage_dir(run, stage, iteration), current.stages.get(stage)
    names = {p.name for p in home.glob("[!.]*") if p.is_dir()} | ({entry.folder} if entry else set())
    for name in sorted(names):
        try:
            committed = Committed(home / name, read_manifest(home / name))
        except StoreError as error:
            problems.append(str(error))
            continue
        state: State = "superseded"
        if entry is not None and entry.folder == name:
            state = "stale" if entry.stale else "current"
        yield Folder(committed, state)
