"""Ends child processes when their parent is gone, even after SIGKILL.

vLLM's processes wait for work for ever when their parent is killed, and keep its memory. So a small process waits on a
pipe that only the parent holds open, and kills them when the pipe closes. It runs as a file, so that it starts fast
and imports nothing of this project.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

REAPER = str(Path(__file__))
"""The file that runs; the server's supervisor recognises a reaper by it in the command line."""


def descendants() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def watch(processes: Iterable[psutil.Process]) -> subprocess.Popen[bytes]:
    """Start a reaper that kills processes when this one ends. Closing the reaper's stdin kills them now.

    Args:
        processes: named to the reaper by pid and start time, because pids are reused.
    """
    named = [f"{process.pid}:{process.create_time()}" for process in processes]
    command = [sys.executable, REAPER, *named]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main() -> None:
    """Wait for the end of stdin, then kill the processes that the arguments name."""
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
