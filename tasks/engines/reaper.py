"""Ends child processes when their parent is gone, even after SIGKILL.

vLLM's processes wait for work for ever when their parent is killed, and keep its memory. So a small process waits on a
pipe that only the parent holds open, and kills them when the pipe closes. It runs as a file, so that it starts fast
and imports nothing of this project.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

REAPER = str(Path(__file__))
"""The file that runs; the server's supervisor recognises a reaper by it in the command line."""


def start_ticks(pid: int) -> int | None:
    """When a process started: clock ticks since the boot, so that a step of the clock changes nothing (proc(5), field
    22 of stat). None where it has ended.

    Without /proc, seconds since the epoch, as the system noted them at the start.
    """
    if not Path("/proc/self/stat").exists():
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time())
        except psutil.NoSuchProcess:
            return None
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = said.rpartition(")")[2].split()  # its name, in brackets before that, may hold anything
    return None if state in "ZX" else int(fields[18])


def descendants() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def watch(processes: Iterable[psutil.Process]) -> subprocess.Popen[bytes]:
    """Start a reaper that kills processes when this one ends. Closing the reaper's stdin kills them now.

    Args:
        processes: named to the reaper by pid and start, because pids are reused.
    """
    named = [f"{process.pid}:{start_ticks(process.pid)}" for process in processes]
    command = [sys.executable, REAPER, *named]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main() -> None:
    """Wait for the end of stdin, then kill the processes that the arguments name."""
    sys.stdin.buffer.read()
    for name in sys.argv[1:]:
        pid, _, started = name.partition(":")
        if str(start_ticks(int(pid))) == started:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
