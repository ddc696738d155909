"""Who writes a run, and who computes a stage: locks on this machine, and a note that names the holder."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from socket import gethostname

import psutil
from filelock import FileLock, Timeout

from schemas.manifest import StageKey
from storage.committed import StoreError
from storage.files import PRIVATE_FOLDER, make_folder, replace_text


class RunLocked(StoreError):
    """Another iteration or stage of this run is writing."""


class StageBusy(StoreError):
    """Another process computes the stage."""


ORPHAN_SECONDS = 15.0
"""How long a stage waits for another process that computes it. The stack ends one whose worker died sooner."""


class RunLocks:
    """The locks of the runs below one data root.

    Args:
        root: the data root; created when first written to, for its user alone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def run_dir(self, run: str) -> Path:
        return self.root / run

    def _make(self, folder: Path) -> None:
        make_folder(self.root, PRIVATE_FOLDER)
        make_folder(folder)

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
        note = self.lock_note(run)
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

    def lock_note(self, run: str) -> Path:
        """Tells who of this machine holds the run's lock, or died with it; gone when the lock is given back."""
        return self.run_dir(run) / ".lock.json"

    def living_holder(self, run: str) -> str | None:
        """Who holds the run's lock, if its process lives. It does not touch the lock: a glance must not keep a writer
        out. Of a holder on another host nobody here knows whether it lives, so its note counts, with its host."""
        try:
            noted = json.loads(self.lock_note(run).read_text())
            if (host := noted.get("host", gethostname())) != gethostname():
                return f"{noted['holder']} on {host}"
            return str(noted["holder"]) if _lives(int(noted["pid"])) else None
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return None

    def lock_holder(self, run: str) -> str:
        """Who holds the run's lock, as it named itself."""
        try:
            return str(json.loads(self.lock_note(run).read_text())["holder"])
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return "an unnamed process"

    def sweep(self, run: str) -> None:
        """Remove staging folders of this host's processes that are gone. Call with the run's lock held."""
        for folder in (self.run_dir(run) / ".staging").glob(f"*-*-{escape(gethostname())}"):
            if not _lives(int(folder.name.split("-")[0])):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    """Whether a process of this machine lives. One that was killed and not yet waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
