"""Ends a backend's child processes when their parent is gone, even after SIGKILL.

vLLM's processes wait for work for ever if their parent is killed, and hold its memory. So a small process of its own
waits on a pipe that only the parent holds open, and ends them when it closes. It is run as a file: it must start
fast and import nothing of this project.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

REAPER = str(Path(__file__))
"""The file that is run; tells this process from others by its command line."""


def descendants() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def watch(processes: Iterable[psutil.Process]) -> subprocess.Popen[bytes]:
    """Have processes ended with this one; closing the result's stdin ends them now.

    Args:
        processes: ours; named by pid and start time, since pids are used again.
    """
    named = [f"{process.pid}:{process.create_time()}" for process in processes]
    command = [sys.executable, REAPER, *named]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main() -> None:
    """Wait for the end of stdin, then end what the arguments name and has not ended by itself."""
    sys.stdin.buffer.read()
    for name in sys.argv[1:]:
        pid, _, started = name.partition(":")
        try:
            process = psutil.Process(int(pid))
            if process.create_time() == float(started):
                process.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    main()
