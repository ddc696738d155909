"""Checking a model's answer where a hang can be ended: in a process with limits, shared by all episodes.

Verifiers are symbolic programs that read what a model wrote. Some texts make them compute for ever, or end the process
with them; then the answer scores 0 and says why.
"""

import asyncio
import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.environments.base import EpisodeFailed, Step

WORKERS = min(4, os.cpu_count() or 1)
_TIMERS = {-signal.SIGPROF, -signal.SIGALRM}
_ROOT = Path(__file__).resolve().parents[2]


class VerifierUnusable(Exception):
    """A function can't be called in the verifier's process, whatever the answer."""


@dataclass(frozen=True)
class Verified:
    """What a verifier said.

    Attributes:
        score: 0 unless the status is ok.
        status: verifier_timeout: it was ended; verifier_crash: it ended the process; verifier_error: it raised.
        error: what went wrong, when status is not ok.
    """

    score: float
    status: Literal["ok", "verifier_timeout", "verifier_crash", "verifier_error"] = "ok"
    error: str | None = None

    @property
    def failure(self) -> Step | None:
        """How an episode of one turn ends without a score; None where there is one.

        An answer that makes a verifier raise is one that it can't read: an invalid action. Where the verifier was
        ended nothing is known of the answer, and the step says so.
        """
        if self.status == "ok":
            return None
        if self.status == "verifier_error":
            return Step(f"The answer can't be read ({self.error}).", done=True, valid=False)
        return Step("The answer could not be checked.", done=True, status=self.status, error=self.error)


async def verify(function: str, *arguments: Any, seconds: float) -> Verified:
    """Compute a score in another process.

    Args:
        function: 'module:name' of a function that gives a number; its module imports what it needs at its top, since
            imports are not counted in `seconds`.
        arguments: of the function; what JSON can write.
        seconds: CPU time after which the process is ended, so that a busy machine changes no score; ten times as
            much on the clock.

    Raises:
        VerifierUnusable: the function can't be imported.
    """
    said = await _ask(function, arguments, seconds)
    if "value" in said:
        return Verified(float(said["value"]))
    if "error" in said:
        return Verified(0.0, "verifier_error", str(said["error"]))
    if said["returncode"] in _TIMERS:
        return Verified(0.0, "verifier_timeout", f"not done after {seconds:g} s of CPU time")
    return Verified(0.0, "verifier_crash", f"its process ended with exit code {said['returncode']}")


async def compute(function: str, *arguments: Any, seconds: float) -> Any:
    """Compute anything that JSON can write in such a process, where also sets have the same order each time.

    Args:
        function: see `verify`.
        arguments: likewise.
        seconds: likewise.

    Raises:
        VerifierUnusable: the function can't be imported.
        EpisodeFailed: it gives nothing.
    """
    said = await _ask(function, arguments, seconds)
    if "value" not in said:
        why = (
            said.get("error") or f"ended with exit code {said['returncode']}, given {seconds:g} s of CPU time"
        )
        raise EpisodeFailed(f"{function}{arguments}: {why}")
    return said["value"]


async def _ask(function: str, arguments: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    call = json.dumps({"function": function, "arguments": arguments, "seconds": seconds})
    said = await asyncio.get_running_loop().run_in_executor(_threads(), _call, call)
    if "unusable" in said:
        raise VerifierUnusable(f"{function} can't be imported: {said['unusable']}")
    return said


def _call(line: str) -> dict[str, Any]:
    """Have a call answered by this thread's process; one that ended is replaced at the next call."""
    process: subprocess.Popen[str] | None = getattr(_OWN, "process", None)
    if process is None or process.poll() is not None:
        process = _OWN.process = _start()
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        said = process.stdout.readline()
    except BrokenPipeError:  # ended before it had read the call
        said = ""
    if said.endswith("\n"):
        return dict(json.loads(said))
    returncode = process.wait()
    atexit.unregister(process.kill)
    return {"returncode": returncode}


_OWN = threading.local()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """One thread a process: each waits for its own."""
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="verifier")


def _start() -> subprocess.Popen[str]:
    # A process of its own, not one of multiprocessing: that would import the caller's main module again.
    search = os.pathsep.join(filter(None, [str(_ROOT), *sys.path]))
    # Each thread would reserve some of the limited memory. Text hashes alike, so that sets have one order.
    same = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.environments.verifier_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **same, "PYTHONPATH": search},
        encoding="utf-8",
    )
    atexit.register(process.kill)
    return process
