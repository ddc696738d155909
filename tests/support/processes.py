"""Whether processes have ended."""

from collections.abc import Iterable

import psutil

from tests.support.waiting import wait_until


def all_end(processes: Iterable[psutil.Process], seconds: float) -> bool:
    """Wait for the end of processes, ours or not; one that only its parent has not taken note of has ended."""
    watched = list(processes)
    wait_until(lambda: not any(map(_runs, watched)), seconds, f"the end of {watched}")
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
