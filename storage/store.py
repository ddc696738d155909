"""The artifact store: staging, atomic commit, what is current.

SIGKILL at any instant leaves either nothing visible of a stage or all of it. A folder is written under `.staging`,
fsynced, renamed into place, and then named in `current.json`. A folder that was renamed and not yet named is found by
its fingerprint, and the next run adopts it. Below an `s3://` URL a conditional put stands in the place of the rename
and of the lock (`storage.mirror`).
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from schemas.manifest import MANIFEST, Current, CurrentEntry, Manifest, StageKey, Summary, folder_name
from storage.committed import Committed, Made, StoreError, parse_manifest, read_manifest, scan_parts
from storage.locks import RunLocks
from storage.places import Files, Place, place_of
from storage.sealed import seal, unseal

__all__ = [
    "Committed",
    "Store",
    "StoreError",
    "read_manifest",
    "scan_parts",
]


class Store(RunLocks):
    """All committed data below one data root.

    Args:
        root: the data root; created when first written to, for its user alone.
        place: where the committed data lies; None: where the data root says.
    """

    def __init__(self, root: Path, place: Place | None = None) -> None:
        super().__init__(root)
        self.place = place or place_of(self.root)

    def __str__(self) -> str:
        return self.place.shown(self.root).rstrip("/")

    def snapshot(self) -> "Store":
        """The store as it is now: whatever it holds but tables and adapters can be read without asking for it again."""
        self.place.pull()
        return Store(self.root, Files(self.root, str(self)))

    @property
    def cache_dir(self) -> Path:
        """Where engines keep their caches and the servers that they started."""
        return self.root / ".cache"

    def stage_dir(self, run: str, stage: str, iteration: int) -> Path:
        return self.root / run / stage / f"iteration={iteration:05d}"

    def iteration_dir(self, run: str, iteration: int) -> Path:
        return self.root / run / "iterations" / f"{iteration:05d}"

    def current_path(self, run: str, iteration: int) -> Path:
        return self.iteration_dir(run, iteration) / "current.json"

    def requests_journal(self, key: StageKey, folder: str) -> Path:
        """The file of an unfinished stage's finished requests."""
        return self.run_dir(key.run) / ".requests" / f"{key.stage}-{key.iteration:05d}-{folder}.journal"

    def checkpoint(self, key: StageKey, folder: str) -> Path:
        """The file from which an unfinished training stage goes on."""
        return self.run_dir(key.run) / ".checkpoints" / f"{key.stage}-{key.iteration:05d}-{folder}.pt"

    def stage_log(self, key: StageKey) -> Path:
        """The log of an unfinished stage, over all its attempts."""
        return self.run_dir(key.run) / ".logs" / f"{key.stage}-{key.iteration:05d}.log"

    def runs(self) -> list[str]:
        """Names of all runs, sorted."""
        return [
            run for run in self.place.names(self.root) if "iterations" in self.place.names(self.root / run)
        ]

    def iterations(self, run: str) -> list[int]:
        """Numbers of a run's iterations, started or finished, ascending."""
        return sorted(int(n) for n in self.place.names(self.run_dir(run) / "iterations") if n.isdecimal())

    def current(self, run: str, iteration: int) -> Current:
        """The iteration's `current.json`; empty where the iteration has not started.

        Raises:
            StoreError: the file is broken.
        """
        path = self.current_path(run, iteration)
        return self._parse(path, self.place.read(path))

    def _parse(self, path: Path, content: bytes | None) -> Current:
        try:
            return Current() if content is None else Current.model_validate_json(unseal(content))
        except ValueError as error:  # pydantic's ValidationError is one
            reason = str(error).splitlines()[0]
            raise StoreError(
                f"{self.place.shown(path)}: broken ({reason}); `nlac verify --repair` rebuilds it"
            ) from None

    def set_current(self, run: str, iteration: int, current: Current) -> None:
        """Replace `current.json`, whatever it says."""
        self.place.change(self.current_path(run, iteration), lambda _: seal(current))

    def change_current(self, run: str, iteration: int, change: Callable[[Current], Current]) -> None:
        """Replace `current.json` by what `change` makes of it; write it where there is none yet."""
        path = self.current_path(run, iteration)

        def changed(content: bytes | None) -> str | None:
            before = self._parse(path, content)
            after = change(before)
            return seal(after) if content is None or after != before else None

        self.place.change(path, changed)

    def config_path(self, run: str, iteration: int) -> Path:
        """The file of an iteration's configuration, up to date."""
        path = self.iteration_dir(run, iteration) / "config.yaml"
        self.place.refresh(path)
        return path

    def set_config(self, run: str, iteration: int, text: str, *, private: bool = False) -> None:
        """Replace an iteration's configuration; a private one is its user's alone to read."""
        self.place.change(self.iteration_dir(run, iteration) / "config.yaml", lambda _: text, private=private)

    def committed(self, run: str, stage: str, iteration: int) -> Committed | None:
        """The current output of a stage, or None.

        Raises:
            StoreError: `current.json` names a folder whose manifest is missing or broken.
        """
        entry = self.current(run, iteration).stages.get(stage)
        if entry is None:
            return None
        return self.at(self.stage_dir(run, stage, iteration) / entry.folder)

    def at(self, folder: Path) -> Committed:
        """A committed folder.

        Raises:
            StoreError: its manifest is missing or broken.
        """
        return Committed(folder, self._manifest(folder, Manifest), self.place)

    def summary(self, folder: Path) -> Summary:
        """The part of a committed folder's manifest that queries need, in a fifth of the time; raises as `at`."""
        return self._manifest(folder, Summary)

    def _manifest(self, folder: Path, model: type[Made]) -> Made:
        path = folder / MANIFEST
        return parse_manifest(self.place.read(path), self.place.shown(path), model)

    def find(self, key: StageKey, fingerprint: str) -> Committed | None:
        """The newest committed attempt with this fingerprint, current or not."""
        home = self.stage_dir(key.run, key.stage, key.iteration)
        folders = [home / name for name in self.place.attempts(home) if name.startswith(fingerprint)]
        whole = [self.at(p) for p in folders if self.place.read(p / MANIFEST) is not None]
        return max(whole, key=lambda c: c.manifest.attempt, default=None)

    def next_attempt(self, key: StageKey, fingerprint: str) -> int:
        """The first attempt number whose folder is not there yet, whole or broken."""
        home, attempt = self.stage_dir(key.run, key.stage, key.iteration), 1
        taken = set(self.place.attempts(home))
        while folder_name(fingerprint, attempt) in taken:
            attempt += 1
        return attempt

    def adopt(self, committed: Committed) -> None:
        """Name a committed folder in `current.json`, and clear its stale mark."""
        m = committed.manifest
        entry = CurrentEntry(fingerprint=m.fingerprint, folder=m.folder)
        self.change_current(
            m.run,
            m.iteration,
            lambda current: current.model_copy(update={"stages": {**current.stages, m.stage: entry}}),
        )

    def all_current(self) -> Iterator[Committed]:
        """Every current committed folder, by run, iteration and stage."""
        for run in self.runs():
            for iteration in self.iterations(run):
                for stage in self.current(run, iteration).stages:
                    committed = self.committed(run, stage, iteration)
                    if committed is not None:
                        yield committed

    @contextmanager
    def staging(self, run: str) -> Iterator[Path]:
        """A private folder to write a stage in; it is removed in the end unless it was committed.

        What a killed process left is removed first: a stage that is tried again runs under the lock of its iteration,
        which may live on and never sweep again.
        """
        self.sweep(run)
        folder = self.run_dir(run) / ".staging" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}-{gethostname()}"
        self._make(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path, manifest: Manifest) -> Committed:
        """Make a staged folder visible, whole, and current.

        Raises:
            StoreError: a committed folder of that name exists; none is ever overwritten.
        """
        (folder / MANIFEST).write_text(seal(manifest), encoding="utf-8")
        Committed(folder, manifest, Files(self.root)).check(content=False)
        home = self.stage_dir(manifest.run, manifest.stage, manifest.iteration)
        self._make(home)
        final = home / manifest.folder
        # `current.json` is there before the first folder is. So a folder without it means that it was lost.
        self.change_current(manifest.run, manifest.iteration, lambda current: current)
        self.place.publish(folder, final, manifest.files)
        committed = Committed(final, manifest, self.place)
        self.adopt(committed)
        return committed
