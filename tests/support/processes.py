"""Whether processes have ended."""

import time
from collections.abc import Iterable

import psutil


def all_end(processes: Iterable[psutil.Process], seconds: float) -> bool:
    """Wait for the end of processes, ours or not; one that only its parent has not taken note of has ended."""
    deadline, left = time.monotonic() + seconds, list(processes)
    while left and time.monotonic() < deadline:
        left = [process for process in left if _runs(process)]
        time.sleep(0.05)
    return not left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
