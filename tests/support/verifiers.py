"""Functions that verify badly, for the process that has to survive them."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def half(answer: str) -> float:
    """A well-behaved one; it prints, which must not disturb anything."""
    sys.stdout.write("{not an answer}\n")
    return 0.5 * len(answer)


def spins(answer: str) -> float:
    """Never ends."""
    while True:
        pass


def deep(answer: str) -> float:
    """Never comes back from C code."""
    return float(len(str(7 ** (7**9))))


def sleeps(answer: str) -> float:
    """Uses no CPU time."""
    time.sleep(600)
    return 1.0


def ends(answer: str) -> float:
    """Takes the process with it."""
    os._exit(3)


def grows(answer: str) -> float:
    """Wants more memory than there is."""
    return float(len(bytearray(1 << 40)))


def order() -> list[str]:
    """Words as a set gives them out, which hangs on how they hash."""
    return list({f"word {number}" for number in range(50)})


def hostile(folder: str, port: int) -> dict[str, str]:
    """What hostile code tries -> "done", or the kind of error that stops it."""
    parent = os.getppid()

    def started() -> None:
        thread = threading.Thread(target=print)
        thread.start()

    tries: dict[str, Callable[[], Any]] = {
        "write a file": lambda: Path(folder, "written").write_text("x"),
        "write below /tmp": lambda: Path("/tmp", "written by an answer").write_text("x"),
        "remove a file": lambda: Path(folder, "kept").unlink(),
        "change a mode": lambda: Path(folder, "kept").chmod(0o644),
        "change a time": lambda: os.utime(Path(folder, "kept"), (0, 0)),
        "set an attribute": lambda: os.setxattr(Path(folder, "kept"), "user.x", b"x"),
        "cut a file": lambda: os.truncate(Path(folder, "kept"), 0),
        "read a file": lambda: Path(folder, "kept").read_text(),
        "list a folder": lambda: list(Path(folder).iterdir()),
        "read the parent's environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "read the users": lambda: Path("/etc/passwd").read_text(),
        "connect": lambda: socket.create_connection(("127.0.0.1", port), 1),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX),
        "start a process": lambda: subprocess.run(["true"]),
        "fork": os.fork,
        "start a thread": started,
        "signal the parent": lambda: os.kill(parent, 0),
        "import": lambda: __import__("colorsys"),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = "done"
        except (OSError, RuntimeError) as error:
            found[name] = type(error).__name__
    return found


def environment() -> dict[str, str]:
    return dict(os.environ)


def identity() -> list[int]:
    return [os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()]


ANSWERED: list[str] = []


def counts(answer: str) -> float:
    """How many answers this process has seen."""
    ANSWERED.append(answer)
    return float(len(ANSWERED))


def forges(text: str) -> float:
    """Writes to every pipe that it finds."""
    for pipe in range(3, 64):
        try:
            os.write(pipe, text.encode())
        except OSError:
            continue
    os._exit(0)
