"""Copies a run into another data root, where it goes on: between folders and buckets in any direction."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from storage.files import make_folder
from storage.folders import Folder, folders
from storage.store import Store, StoreError


@dataclass
class Copied:
    """What was copied, and how many folders were there already."""

    folders: int = 0
    files: int = 0
    bytes: int = 0
    there: int = 0


def copy_run(store: Store, run: str, to: Store) -> Copied:
    """Copy a run's committed folders, superseded ones too, its configurations, and what unfinished stages have done.

    Whoever reads the copy sees a stage once it is whole. Copying again goes on where a killed copy ended, and brings
    what the run has done since.

    Args:
        store: holds the run.
        run: its name.
        to: where it goes.

    Raises:
        StoreError: a part of the run is gone, or the copy has gone on by itself.
        storage.store.RunLocked: the run is being written, here or there.
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
    m = folder.manifest
    final = to.stage_dir(m.run, m.stage, m.iteration) / m.folder
    manifest = Path("manifest.json")
    there = to.place.read(final / manifest)
    if there is not None and there == store.place.read(folder.path / manifest):
        copied.there += 1
        return
    committed = store.at(folder.path)
    committed.check(content=True)
    with to.staging(m.run) as staged:
        log = [Path("stage.log")] if (folder.path / "stage.log").exists() else []
        for name in (manifest, *log, *(Path(entry.path) for entry in m.files)):
            make_folder((staged / name).parent)
            shutil.copyfile(folder.path / name, staged / name)
        make_folder(final.parent)
        to.place.publish(staged, final, m.files)
    copied.folders += 1
    copied.files += len(m.files)
    copied.bytes += sum(entry.bytes for entry in m.files)
