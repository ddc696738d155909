"""Leases: a server lives while any process that holds a lease on it lives.

A lease is an empty file whose name holds the pid and start time of its process. (Pids are reused, so a pid alone
would not do.) The lease of a killed process is void at once, so nothing has to be released.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Literal

import psutil

Kind = Literal["stack", "iteration", "stage"]
_TOLERANCE_SECONDS = 1.0  # two processes read slightly different start times of a third


def hold(folder: Path, kind: Kind, pid: int | None = None) -> Path:
    """Make a lease and return its file. Removing the file ends the lease.

    Args:
        folder: of the server.
        kind: who holds it: the local stack, an iteration, or a stage that sends requests.
        pid: of the process that holds it; None is this one.

    Raises:
        psutil.NoSuchProcess: that process has ended.
    """
    process = psutil.Process(pid)
    path = folder / "leases" / f"{kind}-{process.pid}-{process.create_time():.2f}-{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def live(folder: Path, *kinds: Kind) -> list[Path]:
    """Leases of living processes, of the given kinds or of all. Removes void ones."""
    found = []
    for path in (folder / "leases").glob("*-*-*-*"):
        kind, pid, started, _ = path.name.rsplit("-", 3)
        if not is_alive(int(pid), float(started)):
            path.unlink(missing_ok=True)
        elif not kinds or kind in kinds:
            found.append(path)
    return found


def is_alive(pid: int, started: float) -> bool:
    """Whether the process with this pid lives and was started then (seconds since the epoch)."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _TOLERANCE_SECONDS
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
