"""Processes of tests: whether they have ended, and which are vLLM's."""

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


def engine_cores() -> list[psutil.Process]:
    """vLLM's engines that hold weights, below this process."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if "EngineCore" in " ".join(process.cmdline())]
