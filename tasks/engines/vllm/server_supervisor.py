"""The process that owns one vLLM server: it starts the server, records its state, and ends it without leases.

`tasks.engines.vllm.servers` runs it as `python -m tasks.engines.vllm.server_supervisor FOLDER PORT SECONDS SILENCE
SLEEPS WEIGHTS COMMAND...`. It detaches from its parent, so a server outlives the stage that first needed it. It ends a
server that stops answering, so that the stage fails at once rather than when its requests time out. If the supervisor
is killed, the kernel ends the server, and `tasks.engines.reaper` what the server started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import Event

import psutil
from filelock import FileLock, Timeout

from storage.files import replace_text
from storage.guard import SECRET
from tasks.engines.reaper import REAPER, descendants, watch
from tasks.engines.vllm import leases
from tasks.loopback import open_loopback

POLL_SECONDS = 0.3
GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def _end_with_parent() -> None:
    """Between fork and exec: have the kernel send SIGTERM to the server when this process ends in any way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _healthy(port: int) -> bool:
    try:
        with open_loopback(f"http://127.0.0.1:{port}/health", 2) as answer:
            return answer.status == HTTPStatus.OK
    except OSError:
        return False


class ServerSupervisor:
    """Owns one server, as the module says.

    Args:
        folder: of the server.
        port: on 127.0.0.1, where the server listens.
        seconds: time limit of the start.
        silence: seconds without an answer to /health after which a started server is ended.
        sleeps: whether training stages put the server to sleep; only recorded here.
        weights: that it serves and no others; empty: adapters come and go. Only recorded here.
    """

    def __init__(
        self, folder: Path, port: int, seconds: float, silence: float, sleeps: bool, weights: str
    ) -> None:
        self.folder, self.port, self.seconds = folder, port, seconds
        self.sleeps, self.weights = sleeps, weights
        self.silence, self.answered, self.checked = silence, 0.0, 0.0
        self.stopping = Event()
        self.began, self.clock = time.time(), time.monotonic()
        self.lock = FileLock(folder / "lock")

    def record(self, state: str) -> None:
        content = {
            "supervisor": os.getpid(),
            "identity": leases.identity(os.getpid()),
            "port": self.port,
            "key": os.environ.get(SECRET, ""),
            "state": state,
            "sleeps": self.sleeps,
            "weights": self.weights,
            "processes": sorted(_identities(descendants())),
            "started": self.began,
        }
        replace_text(self.folder / "server.json", json.dumps(content, indent=1) + "\n")

    def withdraw(self) -> None:
        """Remove server.json, unless another supervisor has replaced it."""
        path = self.folder / "server.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8"))["supervisor"] == os.getpid():
            path.unlink()

    def run(self, command: list[str]) -> None:
        """Start the server and return when it has ended."""
        os.umask(0o077)  # its logs, and the sockets between vLLM's processes, are its user's alone
        self.record("starting")
        if (self.folder / "server.log").exists():
            (self.folder / "server.log").replace(self.folder / "server.log.before")
        with (self.folder / "server.log").open("ab") as log:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
        reaper = None
        try:
            while server.poll() is None and not self.stopping.wait(POLL_SECONDS):
                if reaper is None:
                    if _healthy(self.port):
                        reaper = watch(descendants())
                        self._ready()
                    elif time.monotonic() - self.clock > self.seconds:
                        return
                elif self._silent():
                    with (self.folder / "server.log").open("a", encoding="utf-8") as log:
                        log.write(f"\nError: no answer to /health in {self.silence:g} s, ended\n")
                    return
                if self._unleased():
                    return
        finally:
            with suppress(OSError):  # its folder may be gone
                self.record("ending")
            _end(server)
            if reaper is not None:
                reaper.communicate()
            self.withdraw()

    def _ready(self) -> None:
        self.record("ready")
        self.answered = self.checked = time.monotonic()
        line = {"started": self.began, "seconds": round(time.monotonic() - self.clock, 2)}
        with (self.folder / "starts.jsonl").open("a", encoding="utf-8") as starts:
            starts.write(json.dumps(line) + "\n")

    def _silent(self) -> bool:
        """Whether the server has not answered for too long; asks it ten times in that span."""
        now = time.monotonic()
        if now - self.checked < self.silence / 10:
            return False
        self.checked = now
        if _healthy(self.port):
            self.answered = now
        return now - self.answered > self.silence

    def _unleased(self) -> bool:
        """Whether no lease is left. The lock then stays held until this process ends, so that no other process finds
        this server or starts a second one."""
        if leases.live(self.folder):
            return False
        try:
            self.lock.acquire(timeout=0)
        except Timeout:  # a process is about to use it
            return False
        if leases.live(self.folder):
            self.lock.release()
            return False
        return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server with SIGTERM, then with SIGKILL after GRACE_SECONDS, and what it has left behind."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    psutil.wait_procs(_below(), timeout=1)
    while left := _below():  # one may have started another since
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _identities(processes: Iterable[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            yield leases.identity(process.pid)


def _below() -> list[psutil.Process]:
    """Processes that the server has left, including its orphans, which this process adopts."""
    found = []
    for process in descendants():
        try:
            if REAPER not in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def main() -> None:
    """Detach from the parent, then supervise the server."""
    folder, port, seconds, silence, sleeps, weights, *command = sys.argv[1:]
    if os.fork():
        os._exit(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = ServerSupervisor(
        Path(folder), int(port), float(seconds), float(silence), sleeps == "sleeps", weights
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stopping.set())
    supervisor.run(command)


if __name__ == "__main__":
    main()
