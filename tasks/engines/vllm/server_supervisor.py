"""The process that owns one vLLM server: starts it, says when it answers, ends it when nobody wants it any more.

`tasks.engines.vllm.servers` starts it as `python -m tasks.engines.vllm.server_supervisor FOLDER PORT SECONDS
SILENCE SLEEPS COMMAND...`. It leaves its parent at once, so that a server outlives the stage that first
needed it, and lives as long as one lease (`tasks.engines.vllm.leases`) does. A server that stops answering is
ended, so that its stage fails at once and not when its requests time out. Killed itself, the keeper takes the
server along: the server is told by the kernel, what the server started by `tasks.engines.reaper`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil
from filelock import FileLock, Timeout

from storage.files import replace_text
from tasks.engines.reaper import REAPER, descendants, watch
from tasks.engines.vllm import leases

POLL_SECONDS = 0.3
GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def _end_with_parent() -> None:
    """Between fork and exec: SIGTERM for the server when this process ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class ServerSupervisor:
    """See the module.

    Args:
        folder: the server's.
        port: on 127.0.0.1, where it listens.
        seconds: longest start.
        silence: seconds without an answer to /health after which a started server is ended.
        sleeps: whether training stages put it to sleep; only written down here.
    """

    def __init__(self, folder: Path, port: int, seconds: float, silence: float, sleeps: bool) -> None:
        self.folder, self.port, self.seconds, self.sleeps = folder, port, seconds, sleeps
        self.silence, self.answered, self.asked = silence, 0.0, 0.0
        self.stopping = Event()
        self.began = time.time()
        self.lock = FileLock(folder / "lock")

    def record(self, state: str) -> None:
        """Write server.json."""
        own = psutil.Process()
        content = {
            "keeper": own.pid,
            "keeper_started": own.create_time(),
            "port": self.port,
            "key": os.environ.get("VLLM_API_KEY", ""),
            "state": state,
            "sleeps": self.sleeps,
            "started": self.began,
        }
        os.umask(0o077)
        replace_text(self.folder / "server.json", json.dumps(content, indent=1) + "\n")

    def withdraw(self) -> None:
        """Remove server.json, unless another keeper has written its own meanwhile."""
        path = self.folder / "server.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8"))["keeper"] == os.getpid():
            path.unlink()

    def run(self, command: list[str]) -> None:
        """Start the server and stay with it to its end."""
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
                    elif time.time() - self.began > self.seconds:
                        return
                elif self._silent():
                    with (self.folder / "server.log").open("a", encoding="utf-8") as log:
                        log.write(f"\nError: no answer to /health in {self.silence:g} s, ended\n")
                    return
                if self._unwanted():
                    return
        finally:
            self.withdraw()
            _end(server)
            if reaper is not None:
                reaper.communicate()

    def _ready(self) -> None:
        self.record("ready")
        self.answered = self.asked = time.monotonic()
        line = {"started": self.began, "seconds": round(time.time() - self.began, 2)}
        with (self.folder / "starts.jsonl").open("a", encoding="utf-8") as starts:
            starts.write(json.dumps(line) + "\n")

    def _silent(self) -> bool:
        """Whether the server has given no answer for too long; asks it now and then."""
        now = time.monotonic()
        if now - self.asked < self.silence / 10:
            return False
        self.asked = now
        if _healthy(self.port):
            self.answered = now
        return now - self.answered > self.silence

    def _unwanted(self) -> bool:
        """Whether nobody wants the server. Then the lock stays held to this process's end, so that nobody is told of
        this server, nor starts another beside it."""
        if leases.live(self.folder):
            return False
        try:
            self.lock.acquire(timeout=0)
        except Timeout:  # somebody is about to use it
            return False
        if leases.live(self.folder):
            self.lock.release()
            return False
        return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, which ends what it started; SIGKILL for what is left after GRACE_SECONDS."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    psutil.wait_procs(_below(), timeout=1)
    while left := _below():  # one of them may have started another meanwhile
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _below() -> list[psutil.Process]:
    """What the server has left; its orphans too, which this process adopts."""
    found = []
    for process in descendants():
        try:
            if REAPER not in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def main() -> None:
    """Leave the parent, then keep the server."""
    folder, port, seconds, silence, sleeps, *command = sys.argv[1:]
    if os.fork():
        os._exit(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = ServerSupervisor(Path(folder), int(port), float(seconds), float(silence), sleeps == "sleeps")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.stopping.set())
    keeper.run(command)


if __name__ == "__main__":
    main()
