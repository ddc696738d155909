"""Verifies a model's answer in another process, confined and with limits.

Verifiers are symbolic programs that parse what a model wrote, and some evaluate it as code. Some texts make them
compute forever or crash their process. Such an answer scores 0, and its row records the reason.
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
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from tasks.environments.base import EpisodeFailed, Step
from tasks.environments.isolation import why_not
from tasks.foreign_json import BadJson, read_json

WORKERS = min(4, os.cpu_count() or 1)
_TIMERS = {-signal.SIGPROF, -signal.SIGALRM}
_ROOT = Path(__file__).resolve().parents[2]


class VerifierUnusable(Exception):
    """A verifier function can't be imported, or its process can't be confined, whatever the answer."""


@dataclass(frozen=True)
class Verified:
    """The result of a verifier.

    Attributes:
        score: 0 unless the status is ok.
        status: verifier_timeout (exceeded its time), verifier_crash (its process ended), verifier_error (it raised).
        error: what went wrong, unless the status is ok.
    """

    score: float
    status: Literal["ok", "verifier_timeout", "verifier_crash", "verifier_error"] = "ok"
    error: str | None = None

    @property
    def failure(self) -> Step | None:
        """The last step of a single-turn episode without a score; None if there is a score.

        A verifier raises on an answer that it can't parse: an invalid action. A timeout or crash says nothing about the
        answer, so the step carries that status instead.
        """
        if self.status == "ok":
            return None
        if self.status == "verifier_error":
            return Step(f"The answer can't be read ({self.error}).", done=True, valid=False)
        return Step("The answer could not be checked.", done=True, status=self.status, error=self.error)


def check_isolation(name: str, *, allow_unisolated: bool) -> bool:
    """Whether answers are verified in a confined process.

    Args:
        name: of the environment.
        allow_unisolated: verify them without, where this machine can't confine a process.

    Raises:
        ValueError: it can't, and that is not allowed.
    """
    reason = why_not()
    if reason is not None and not allow_unisolated:
        raise ValueError(
            f"{name}: its scorer may run an answer as code, and this machine can't confine that: {reason}; where you "
            "trust the model, set allow_unisolated to true"
        )
    return reason is None


async def verify(function: str, *arguments: Any, seconds: float, isolated: bool = True) -> Verified:
    """Compute a score in another process.

    Args:
        function: 'module:name' of a function that returns a number. Its module imports its dependencies at the top,
            since imports do not count towards `seconds`.
        arguments: of the function; JSON values.
        seconds: CPU time limit, so that a busy machine changes no score. The wall-clock limit is ten times as long.
        isolated: confine the process, as `isolation` describes.

    Raises:
        VerifierUnusable: the function can't be imported, or the process can't be confined.
    """
    said = await _ask(function, arguments, seconds, isolated)
    value = said.get("value")
    if isinstance(value, (int, float)) and isfinite(value):
        return Verified(float(value))
    if "value" in said:
        return Verified(0.0, "verifier_error", f"the score is no number: {str(value)[:80]}")
    if "error" in said:
        return Verified(0.0, "verifier_error", str(said["error"]))
    if said["returncode"] in _TIMERS:
        return Verified(0.0, "verifier_timeout", f"not done after {seconds:g} s of CPU time")
    return Verified(0.0, "verifier_crash", f"its process ended with exit code {said['returncode']}")


async def compute(function: str, *arguments: Any, seconds: float, isolated: bool = True) -> Any:
    """Compute a JSON value in such a process, where sets also have the same order every time.

    The arguments are those of `verify`.

    Raises:
        VerifierUnusable: as `verify`.
        EpisodeFailed: it raised, crashed or exceeded its time.
    """
    said = await _ask(function, arguments, seconds, isolated)
    if "value" not in said:
        why = (
            said.get("error") or f"ended with exit code {said['returncode']}, given {seconds:g} s of CPU time"
        )
        raise EpisodeFailed(f"{function}{arguments}: {why}")
    return said["value"]


async def _ask(function: str, arguments: tuple[Any, ...], seconds: float, isolated: bool) -> dict[str, Any]:
    call = json.dumps(
        {"function": function, "arguments": arguments, "seconds": seconds, "isolated": isolated}
    )
    said = await asyncio.get_running_loop().run_in_executor(_threads(), _call, call)
    if "unusable" in said:
        raise VerifierUnusable(f"{function} {said['unusable']}")
    return said


def _call(line: str) -> dict[str, Any]:
    """Send a call to this thread's process. The next call replaces a process that ended."""
    process: subprocess.Popen[str] | None = getattr(_OWN, "process", None)
    if process is None or process.poll() is not None:
        process = _OWN.process = _start()
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        said = process.stdout.readline()
    except BrokenPipeError:  # the process ended before it read the call
        said = ""
    if said.endswith("\n"):
        try:
            return dict(read_json(said))
        except BadJson as error:
            return {"error": str(error)}
    returncode = process.wait()
    atexit.unregister(process.kill)
    return {"returncode": returncode}


_OWN = threading.local()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """One thread per process; each waits for its own."""
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="verifier")


def _start() -> subprocess.Popen[str]:
    # Not multiprocessing, which would import the caller's main module again.
    search = os.pathsep.join(filter(None, [str(_ROOT), *sys.path]))
    # Nothing of this process's environment. Each thread would reserve some of the limited memory. A fixed hash seed
    # gives sets one order.
    fixed = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.environments.verifier_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **fixed,
            "PYTHONPATH": search,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.defpath,
            "LC_ALL": "C.UTF-8",
        },
        encoding="utf-8",
    )
    atexit.register(process.kill)
    return process
