"""Finding and ending processes, also those in sessions of their own."""

import ctypes
import os
import sys
from pathlib import Path

import psutil

from flows.stack.environment import STACK_MARK


def become_subreaper() -> None:
    """On Linux, adopt orphaned descendants, so that a process whose parent was killed is reaped here (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def marked_processes(root: Path) -> list[psutil.Process]:
    """Live processes with this data root's mark, without this one."""
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
    """Whether a process or one of its descendants listens on a TCP port."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        open_ports = [c.laddr.port for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"]
    except psutil.NoSuchProcess:
        return False
    return port in open_ports


def end(processes: list[psutil.Process], seconds: float) -> None:
    """Send SIGTERM, and after `seconds` SIGKILL to those still alive."""
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                send(process)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=seconds)
