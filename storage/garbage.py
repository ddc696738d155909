"""What a store no longer needs: superseded attempts that nothing refers to, and journals, checkpoints and shards of
stages that are done."""

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.manifest import MANIFEST, Summary
from storage.committed import StoreError
from storage.folders import Folder, folders
from storage.places import Files
from storage.shards import read_shard, shard_homes
from storage.store import Store

Kind = Literal["superseded attempt", "abandoned upload", "journal", "checkpoint", "shards"]
_LOCAL: dict[Kind, str] = {"journal": ".requests", "checkpoint": ".checkpoints"}
"""What a host keeps for itself, and in which folder."""
_UNFINISHED = re.compile(
    r"(?P<stage>[a-z]+(-[a-z]+)*)(\.\d{4}-of-\d{4})?-(?P<iteration>\d{5})-(?P<folder>[^.]+)(\.journal|\.pt)?"
)
"""A journal, a checkpoint, or the folder of shards: named by the stage, and the shard where it is a shard's own."""


@dataclass(frozen=True)
class Garbage:
    """Something that can be removed; `bytes` is what that frees."""

    kind: Kind
    run: str
    path: Path
    bytes: int


def garbage(store: Store, aliased: Collection[Path] = ()) -> list[Garbage]:
    """What can be removed. What is current never is, nor what a current stage was computed from: its rows, adapters and
    optimizer states stay, also where they have been replaced since.

    Args:
        store: the store.
        aliased: folders of adapters that are in use outside the store, such as MLflow's champions.

    Raises:
        StoreError: a manifest or `current.json` is broken, so that nobody knows what it refers to.
    """
    problems: list[str] = []
    found = list(folders(store, problems))
    if problems:
        raise StoreError(f"{problems[0]}. Nothing is removed while it is unknown what that refers to")
    current = [folder for folder in found if folder.state != "superseded"]
    made = [store.at(folder.path).manifest.fingerprint_inputs for folder in current]
    needed = {digest for inputs in made for digest in (*inputs.models.values(), *inputs.inputs.values())}
    needed -= {digest for folder in current for digest in _holds(folder.manifest)}
    old = [
        Garbage("superseded attempt", folder.manifest.run, folder.path, _size(folder))
        for folder in found
        if folder.state == "superseded"
        and not needed & _holds(folder.manifest)
        and not any(path.is_relative_to(folder.path) for path in aliased)
    ]
    unlisted = store.place.unlisted({folder.path: folder.manifest.files for folder in found})
    old += [
        Garbage("abandoned upload", one.path.relative_to(store.root).parts[0], one.path, one.bytes)
        for one in unlisted
        if one.abandoned
    ]
    return old + [left for run in store.runs() for left in _left_over(store, run)]


def remove_garbage(store: Store, aliased: Collection[Path] = ()) -> list[Garbage]:
    """Remove what `garbage` finds while a run is locked, one run after the other; gives what was removed.

    Raises:
        StoreError: as garbage.
        storage.locks.RunLocked: a run is being written.
    """
    removed = []
    for run in sorted({found.run for found in garbage(store, aliased)}):
        with store.lock(run, "nlac gc"), store.staging(run) as aside:
            for number, found in enumerate(garbage(store, aliased)):
                if found.run == run:
                    place = Files(store.root) if found.kind in _LOCAL else store.place
                    place.remove(found.path, aside / str(number))
                    removed.append(found)
    return removed


def _holds(manifest: Summary) -> set[str]:
    """Digests of all that a folder holds."""
    digests = {table.digest for table in manifest.tables.values()}
    digests |= {adapter.digest for adapter in manifest.adapters.values()}
    return digests | {file.sha256 for file in manifest.files}


def _left_over(store: Store, run: str) -> list[Garbage]:
    """Journals, checkpoints and shards of stages that are committed, or whose iteration is finished."""
    left = [
        Garbage(kind, run, path, path.stat().st_size)
        for kind, folder in _LOCAL.items()
        for path in sorted(store.run_dir(run).glob(f"{folder}/*"))
        if _is_done(store, run, path.name)
    ]
    return left + [
        Garbage("shards", run, home, _size_of_shards(store, home))
        for home in shard_homes(store, run)
        if _is_done(store, run, home.name)
    ]


def _is_done(store: Store, run: str, name: str) -> bool:
    """Whether the stage is committed that a journal, a checkpoint or the folder of its shards is named by, or its
    iteration is finished."""
    known = _UNFINISHED.fullmatch(name)
    if known is None:
        return False
    iteration = int(known["iteration"])
    committed = store.stage_dir(run, known["stage"], iteration) / known["folder"] / MANIFEST
    return store.place.read(committed) is not None or store.current(run, iteration).state == "finished"


def _size_of_shards(store: Store, home: Path) -> int:
    size = 0
    for name in store.place.attempts(home):
        with suppress(StoreError):  # of one without a manifest nobody knows
            size += sum(entry.bytes for entry in read_shard(store, home / name).manifest.files)
    return size


def _size(folder: Folder) -> int:
    own = (folder.path / name for name in (MANIFEST, "stage.log"))
    return sum(entry.bytes for entry in folder.manifest.files) + sum(
        p.stat().st_size for p in own if p.exists()
    )


def remove_run(store: Store, run: str) -> None:
    """Remove a run whole.

    Raises:
        storage.locks.RunLocked: it is being written.
    """
    aside = store.root / f".removed-{run}"
    with store.lock(run, "nlac runs delete"):
        shutil.rmtree(aside, ignore_errors=True)  # of an earlier attempt that was killed
        store.place.remove(store.run_dir(run), aside)
    shutil.rmtree(aside)
