"""Who wants a server to live: a file a process, which counts while that process lives.

So nobody has to say good-bye: a killed owner's lease is void at once. A pid alone would not do, since pids are used
again; the file's name holds the process's start time too.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Literal

import psutil

Kind = Literal["stack", "iteration", "stage"]
_TOLERANCE_SECONDS = 1.0  # start times of one process, read by two others


def hold(folder: Path, kind: Kind, pid: int | None = None) -> Path:
    """Make a lease on a server's folder; gives its file, which ends it when it is removed.

    Args:
        folder: the server's.
        kind: the local stack, an iteration, or a stage that is asking.
        pid: of the process whose life counts; None: this one.

    Raises:
        psutil.NoSuchProcess: that process is gone.
    """
    process = psutil.Process(pid)
    path = folder / "leases" / f"{kind}-{process.pid}-{process.create_time():.2f}-{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def live(folder: Path, *kinds: Kind) -> list[Path]:
    """Leases of processes that live, of all kinds or of some; void ones are removed."""
    found = []
    for path in (folder / "leases").glob("*-*-*-*"):
        kind, pid, started, _ = path.name.rsplit("-", 3)
        if not is_alive(int(pid), float(started)):
            path.unlink(missing_ok=True)
        elif not kinds or kind in kinds:
            found.append(path)
    return found


def is_alive(pid: int, started: float) -> bool:
    """Whether a process lives, and is the one that was started then (seconds since the epoch)."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _TOLERANCE_SECONDS
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
