"""A process that verifies answers under limits; `verifier` starts it with `python -m`.

Each line of standard input is a call, {"function": "module:name", "arguments": [...], "seconds": s, "isolated": b}. The
answer is one line: {"value": x}, {"error": "..."} if the function raised, {"returncode": n} if its process ended, or
{"unusable": "..."} if the function can't be imported or its process can't be confined.

Scorers may evaluate an answer as code. So each call runs in a process of its own, forked once the function is imported,
and confined before it reads the answer (`isolation`). The environment holds nothing of the program's.

The kernel enforces the limits. Two timers send signals that have no handler, so they end a process even inside C code
that never returns to the interpreter, and even after the parent is gone. Memory is limited too.
"""

import contextlib
import functools
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from tasks.environments.isolation import NotIsolated, allow_reading, isolate

LONGEST = 1 << 20  # bytes of an answer to a call
CONFINED = b"\0"
MEMORY = 4 << 30  # bytes of address space
PATIENCE = (
    10  # wall-clock seconds per second of CPU time, for a function that sleeps or waits for a busy machine
)
IMPORTING = 60.0  # CPU seconds to import a function; symbolic libraries are large


def set_timers(seconds: float) -> None:
    """End this process after this much CPU time, or PATIENCE times as much wall-clock time; 0 cancels both timers."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # a library's own handler would not run during a hang in C code
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * PATIENCE)


def answer(call: dict[str, Any]) -> str:
    """The answer to a call, as one line of JSON. The function runs in a process of its own, forked for this call."""
    module, _, name = str(call["function"]).partition(":")
    set_timers(IMPORTING)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        rules = readable(module) if call["isolated"] else None
    except (ImportError, AttributeError) as error:
        return json.dumps({"unusable": f"can't be imported: {error}"})
    except NotIsolated as error:
        return json.dumps({"unusable": f"can't be isolated: {error}"})
    finally:
        set_timers(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # later calls are none of its business
            evaluate(function, call, writing, rules)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read(LONGEST)
    returned = {"returncode": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
    unconfined, confined, result = said.partition(CONFINED)
    if not confined and unconfined:
        return json.dumps({"unusable": f"can't be isolated: {unconfined.decode()}"})
    try:
        read = json.loads(result)
        return json.dumps({name: read[name] for name in ("value", "error") if name in read} or returned)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(returned)


@functools.cache
def readable(module: str) -> int:
    """What a function of an imported module may read; made once, since making it takes longer than most answers."""
    return allow_reading()


def evaluate(function: Callable[..., Any], call: dict[str, Any], pipe: int, rules: int | None) -> None:
    """Confine this process, then write CONFINED and the function's value or error. What can't be confined writes why.

    From CONFINED on, nothing that is written is trusted.
    """
    try:
        if rules is not None:
            isolate(rules)
    except NotIsolated as error:
        os.write(pipe, str(error).encode())
        return
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 256)
    os.write(pipe, CONFINED)
    set_timers(call["seconds"])
    try:
        said = json.dumps({"value": function(*call["arguments"])})
    except Exception as error:  # noqa: BLE001 - anything a verifier raises becomes a row's error
        said = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    os.write(pipe, said.encode())


def main() -> None:
    """Answer calls until standard input ends."""
    # What a function prints must not mix with the answers.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        print(answer(json.loads(line)), file=out, flush=True)


if __name__ == "__main__":
    main()
