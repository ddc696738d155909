"""Leases: a server, or the local stack, lives while any process that holds a lease on it lives.

A lease is an empty file whose name holds the identity of its process. The lease of a killed process is void at once, so
nothing has to be released.
"""

from __future__ import annotations

import platform
import secrets
from pathlib import Path
from typing import Literal

import psutil

from tasks.engines.reaper import start_ticks

Kind = Literal["stack", "iteration", "stage"]
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host() -> str:
    """The name of this machine."""
    return platform.node()


def identity(pid: int) -> str:
    """What tells a process from all others: pid, start in ticks since the boot, boot and host. None of it moves with
    the clock.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    started = start_ticks(pid)
    if started is None:
        raise psutil.NoSuchProcess(pid)
    boot = _BOOT_ID.read_text().strip().replace("-", "") if _BOOT_ID.exists() else "0"
    return f"{pid}-{started}-{boot}-{host()}"


def is_alive(process: str) -> bool:
    """Whether the process of an identity lives here."""
    try:
        return identity(int(process.partition("-")[0])) == process
    except psutil.NoSuchProcess:
        return False


def hold(folder: Path, kind: Kind, pid: int | None = None) -> Path:
    """Make a lease and return its file. Removing the file ends the lease.

    Args:
        folder: of the server, or of the stack.
        kind: who holds it: the local stack, an iteration, or a stage that sends requests.
        pid: of the process that holds it; None is this one.

    Raises:
        psutil.NoSuchProcess: that process has ended.
    """
    holder = identity(psutil.Process(pid).pid)
    path = folder / "leases" / f"{kind}-{holder}-{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def live(folder: Path, *kinds: Kind) -> list[Path]:
    """Leases of living processes, of the given kinds or of all. Removes void ones; those of another host, which can't
    be judged here, stay and don't count."""
    found = []
    for path in (folder / "leases").glob("*-*-*-*-*-*"):
        kind, rest = path.name.split("-", 1)
        holder, _ = rest.rsplit("-", 1)
        if is_alive(holder):
            if not kinds or kind in kinds:
                found.append(path)
        elif holder.split("-", 3)[3] == host():
            path.unlink(missing_ok=True)
    return found
