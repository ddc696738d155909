"""Finding and ending processes, leftovers in sessions of their own included."""

import ctypes
import os
import sys
from pathlib import Path

import psutil

from flows.stack.environment import STACK_MARK


def become_subreaper() -> None:
    """On Linux, adopt orphans below us, so that a process whose parent was killed is seen and reaped here
    (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def marked_processes(root: Path) -> list[psutil.Process]:
    """Live processes that carry this data root's mark, other than ourselves."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(STACK_MARK) == str(root) and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and process.pid != os.getpid():
            found.append(process)
    return found


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a TCP port."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        open_ports = [c.laddr.port for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"]
    except psutil.NoSuchProcess:
        return False
    return port in open_ports


def end(processes: list[psutil.Process], seconds: float) -> None:
    """SIGTERM, then after `seconds` SIGKILL for those still there."""
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                send(process)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=seconds)
