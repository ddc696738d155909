"""Copies a run into another data root, where it goes on: between folders and buckets in any direction."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.manifest import MANIFEST, FileEntry
from storage.committed import Unreachable
from storage.files import make_folder
from storage.folders import Folder, folders
from storage.shards import read_shard, shard_homes
from storage.store import Store, StoreError


@dataclass
class Copied:
    """What was copied, and how many folders were there already."""

    folders: int = 0
    files: int = 0
    bytes: int = 0
    there: int = 0


def copy_run(store: Store, run: str, to: Store) -> Copied:
    """Copy a run's committed folders, superseded ones too, its configurations, and what unfinished stages have done:
    their shards, the requests that were answered, checkpoints.

    Whoever reads the copy sees a stage once it is whole. Copying again goes on where a killed copy ended, and brings
    what the run has done since.

    Args:
        store: holds the run.
        run: its name.
        to: where it goes.

    Raises:
        StoreError: a part of the run is gone, or the copy has gone on by itself.
        storage.locks.RunLocked: the run is being written, here or there.
    """
    if store.root == to.root:
        raise StoreError(f"{to}: run '{run}' is there already; name another data root with --to")
    problems: list[str] = []
    found = list(folders(store, problems, run))
    if problems:
        raise StoreError(f"{problems[0]}. Nothing is copied while a part of the run is gone")
    copied = Copied()
    with store.lock(run, "nlac runs copy"), to.lock(run, "nlac runs copy"):
        numbers = store.iterations(run)
        _refuse_other(store, run, to)
        for number in numbers:
            to.change_current(run, number, lambda current: current)  # it is there before the first folder is
        for folder in found:
            _copy_folder(store, folder, to, copied)
        for home in shard_homes(store, run):
            for name in store.place.attempts(home):
                _copy_shard(store, home / name, to, copied)
        for number in numbers:
            path = store.config_path(run, number)
            if path.exists():
                to.set_config(run, number, path.read_text(encoding="utf-8"))
            to.set_current(run, number, store.current(run, number))
        for name in (".requests", ".checkpoints"):
            if (store.run_dir(run) / name).exists():
                shutil.copytree(store.run_dir(run) / name, to.run_dir(run) / name, dirs_exist_ok=True)
    return copied


def _refuse_other(store: Store, run: str, to: Store) -> None:
    """Refuse to replace what is no copy of the run."""
    for number in to.iterations(run):
        ours = store.current(run, number).stages
        for stage, entry in to.current(run, number).stages.items():
            if stage not in ours or ours[stage].folder != entry.folder:
                raise StoreError(
                    f"{to}: its run '{run}' has another {stage} in iteration {number}, so it is no copy of this one, "
                    "or has gone on by itself; delete it there (nlac runs delete), or go on with it"
                )


def _copy_folder(store: Store, folder: Folder, to: Store, copied: Copied) -> None:
    there = to.place.read(_at(store, folder.path, to) / MANIFEST)
    if there is not None and there == store.place.read(folder.path / MANIFEST):
        copied.there += 1
        return
    store.at(folder.path).check(content=True)
    _publish(store, folder.path, folder.manifest.files, to, copied)


def _copy_shard(store: Store, path: Path, to: Store, copied: Copied) -> None:
    """Copy a shard of an unfinished stage, if it is whole; else the copy computes it again. One that is there stays:
    shards with equal inputs are equal."""
    if to.place.read(_at(store, path, to) / MANIFEST) is not None:
        copied.there += 1
        return
    try:
        shard = read_shard(store, path)
        broken = next(shard.faults(), None)
    except Unreachable:
        raise
    except StoreError:  # `nlac verify` names it
        return
    if broken is None:
        _publish(store, path, shard.manifest.files, to, copied)


def _publish(store: Store, path: Path, files: Sequence[FileEntry], to: Store, copied: Copied) -> None:
    """Make a folder whose files are here and whole visible there."""
    final = _at(store, path, to)
    with to.staging(path.relative_to(store.root).parts[0]) as staged:
        for name in (MANIFEST, *(entry.path for entry in files)):
            make_folder((staged / name).parent)
            shutil.copyfile(path / name, staged / name)
        if (log := store.place.read(path / "stage.log")) is not None:
            (staged / "stage.log").write_bytes(log)
        make_folder(final.parent)
        to.place.publish(staged, final, files)
    copied.folders += 1
    copied.files += len(files)
    copied.bytes += sum(entry.bytes for entry in files)


def _at(store: Store, path: Path, to: Store) -> Path:
    return to.root / path.relative_to(store.root)
