"""The artifact store: staging, atomic commit, what is current, the lock of a run.

SIGKILL at any instant leaves either nothing visible of a stage or all of it. A folder is written under `.staging`,
fsynced, renamed into place, and then named in `current.json`. A folder that was renamed and not yet named is found by
its fingerprint, and the next run adopts it.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from socket import gethostname

import psutil
from filelock import FileLock, Timeout

from schemas.manifest import Current, CurrentEntry, Manifest, StageKey, folder_name
from storage.committed import Committed, StoreError, read_manifest, read_summary, scan_parts
from storage.files import PRIVATE_FOLDER, fsync, fsync_tree, make_folder, replace_text
from storage.sealed import seal, unseal

__all__ = [
    "Committed",
    "RunLocked",
    "StageBusy",
    "Store",
    "StoreError",
    "read_manifest",
    "read_summary",
    "scan_parts",
]


class RunLocked(StoreError):
    """Another iteration or stage of this run is writing."""


class StageBusy(StoreError):
    """Another process computes the stage."""


ORPHAN_SECONDS = 15.0
"""How long a stage waits for another process that computes it. The stack ends one whose worker died sooner."""


class Store:
    """All committed data below one data root.

    Args:
        root: the data root; created when first written to, for its user alone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @property
    def cache_dir(self) -> Path:
        """Where engines keep their caches and the servers that they started."""
        return self.root / ".cache"

    def run_dir(self, run: str) -> Path:
        return self.root / run

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

    def _make(self, folder: Path) -> None:
        make_folder(self.root, PRIVATE_FOLDER)
        make_folder(folder)

    def runs(self) -> list[str]:
        """Names of all runs, sorted."""
        return sorted(p.parent.name for p in self.root.glob("[!.]*/iterations") if p.is_dir())

    def iterations(self, run: str) -> list[int]:
        """Numbers of a run's iterations, started or finished, ascending."""
        return sorted(int(p.name) for p in (self.run_dir(run) / "iterations").glob("[0-9]*") if p.is_dir())

    def current(self, run: str, iteration: int) -> Current:
        """The iteration's `current.json`; empty where the iteration has not started.

        Raises:
            StoreError: the file is broken.
        """
        path = self.current_path(run, iteration)
        try:
            return Current.model_validate_json(unseal(path.read_bytes()))
        except FileNotFoundError:
            return Current()
        except ValueError as error:  # pydantic's ValidationError is one
            reason = str(error).splitlines()[0]
            raise StoreError(f"{path}: broken ({reason}); `nlac verify --repair` rebuilds it") from None

    def set_current(self, run: str, iteration: int, current: Current) -> None:
        """Replace `current.json`, whatever it says."""
        with self._changing_current(run):
            replace_text(self.current_path(run, iteration), seal(current))

    def change_current(self, run: str, iteration: int, change: Callable[[Current], Current]) -> None:
        """Replace `current.json` by what `change` makes of it; write it where there is none yet."""
        path = self.current_path(run, iteration)
        with self._changing_current(run):
            before = self.current(run, iteration)
            if (after := change(before)) != before or not path.exists():
                replace_text(path, seal(after))

    def committed(self, run: str, stage: str, iteration: int) -> Committed | None:
        """The current output of a stage, or None.

        Raises:
            StoreError: `current.json` names a folder whose manifest is missing or broken.
        """
        entry = self.current(run, iteration).stages.get(stage)
        if entry is None:
            return None
        folder = self.stage_dir(run, stage, iteration) / entry.folder
        return Committed(folder, read_manifest(folder))

    def find(self, key: StageKey, fingerprint: str) -> Committed | None:
        """The newest committed attempt with this fingerprint, current or not."""
        home = self.stage_dir(key.run, key.stage, key.iteration)
        folders = [p for p in home.glob(f"{fingerprint}*") if p.is_dir()]
        whole = [Committed(p, read_manifest(p)) for p in folders if (p / "manifest.json").exists()]
        return max(whole, key=lambda c: c.manifest.attempt, default=None)

    def next_attempt(self, key: StageKey, fingerprint: str) -> int:
        """The first attempt number whose folder is not there yet, whole or broken."""
        home, attempt = self.stage_dir(key.run, key.stage, key.iteration), 1
        while (home / folder_name(fingerprint, attempt)).exists():
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

    def _changing_current(self, run: str) -> FileLock:
        """Held from reading a `current.json` of a run to replacing it: two writers would undo each other's change."""
        return FileLock(self.run_dir(run) / ".current.lock")

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
        (folder / "manifest.json").write_text(seal(manifest), encoding="utf-8")
        committed = Committed(folder, manifest)
        committed.check(content=False)
        fsync_tree(folder)
        home = self.stage_dir(manifest.run, manifest.stage, manifest.iteration)
        self._make(home)
        final = home / manifest.folder
        if final.exists():
            raise StoreError(f"{final}: committed already; a committed folder is never overwritten")
        # `current.json` is there before the first folder is. So a folder without it means that it was lost.
        self.change_current(manifest.run, manifest.iteration, lambda current: current)
        try:
            folder.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise StoreError(
                f"{final}: another process committed it; a committed folder is never overwritten"
            ) from None
        fsync(home)
        committed = Committed(final, manifest)
        self.adopt(committed)
        return committed

    def sweep(self, run: str) -> None:
        """Remove staging folders of this host's processes that are gone. Call with the run's lock held."""
        for folder in (self.run_dir(run) / ".staging").glob(f"*-*-{escape(gethostname())}"):
            if not _lives(int(folder.name.split("-")[0])):
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, run: str, holder: str, within: str | None = None) -> Iterator[None]:
        """Hold a run for writing.

        Args:
            run: the run.
            holder: who holds it, one line for people. It begins with an id, which children pass as `within`.
            within: id of the holder that this process works for; that lock covers it.

        Raises:
            RunLocked: someone else holds it; the message names the holder.
        """
        folder = self.run_dir(run)
        self._make(folder)
        note = folder / ".lock.json"
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            held_by = self.lock_holder(run)
            if within is not None and held_by.split(" ")[0] == within:
                yield
                return
            raise RunLocked(
                f"run '{run}' is being written by {held_by}; wait for it, cancel it, or use another run name"
            ) from None
        try:
            replace_text(note, json.dumps({"holder": holder, "pid": os.getpid(), "host": gethostname()}))
            self.sweep(run)
            yield
        finally:
            note.unlink(missing_ok=True)
            lock.release()

    @contextmanager
    def computing(self, key: StageKey) -> Iterator[None]:
        """Hold a stage for computing, for at most one process on this machine at a time.

        The run's lock does not do that: it is the iteration's, and when a worker dies, the process of its stage goes on
        for a while beside the one that is started anew.

        Raises:
            StageBusy: another process still computes it after ORPHAN_SECONDS.
        """
        folder = self.run_dir(key.run) / ".computing"
        self._make(folder)
        lock = FileLock(folder / f"{key.stage}-{key.iteration:05d}.lock")
        try:
            lock.acquire(timeout=ORPHAN_SECONDS)
        except Timeout:
            raise StageBusy(
                f"another process computes {key.stage} of iteration {key.iteration} of run '{key.run}'; wait for its "
                f"end, or end it (it holds {lock.lock_file})"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def living_holder(self, run: str) -> str | None:
        """Who holds the run's lock, if its process lives. It does not touch the lock: a glance must not keep a writer
        out. Of a holder on another host nobody here knows whether it lives, so its note counts, with its host."""
        try:
            noted = json.loads((self.run_dir(run) / ".lock.json").read_text())
            if (host := noted.get("host", gethostname())) != gethostname():
                return f"{noted['holder']} on {host}"
            return str(noted["holder"]) if _lives(int(noted["pid"])) else None
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return None

    def lock_holder(self, run: str) -> str:
        """Who holds the run's lock, as it named itself."""
        try:
            return str(json.loads((self.run_dir(run) / ".lock.json").read_text())["holder"])
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return "an unnamed process"


def _lives(pid: int) -> bool:
    """Whether a process of this machine lives. One that was killed and not yet waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
