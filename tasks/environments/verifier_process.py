"""A process that checks answers under limits, started by `verifier` as `python -m tasks.environments.verifier_process`.

Each line of standard input is a call, {"function": "module:name", "arguments": [...], "seconds": s}; the answer is a
line, {"value": x}, or {"error": "..."} where the function raised, or {"unusable": "..."} where it can't be imported.

The limits are the kernel's: two timers whose signals nobody handles, so that they end this process even in the middle
of C code that never comes back to the interpreter, and even when the parent is gone. A computation that grows without
bound meets a limit on memory.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 4 << 30  # bytes of address space
PATIENCE = 10  # wall-clock seconds to a second of CPU time: one that sleeps, or waits for a busy machine
IMPORTING = 60.0  # CPU seconds to import a function in; symbolic libraries are large


def set_timers(seconds: float) -> None:
    """End this process after so much CPU time, or PATIENCE times as much wall-clock time; 0 takes both back."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # a library may have left a handler that a hang never reaches
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * PATIENCE)


def answer(call: dict[str, Any]) -> str:
    """The line that answers a call."""
    module, _, name = str(call["function"]).partition(":")
    set_timers(IMPORTING)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return json.dumps({"unusable": str(error)})
    set_timers(call["seconds"])
    try:
        return json.dumps({"value": function(*call["arguments"])})
    except Exception as error:  # noqa: BLE001 - whatever an answer makes a verifier raise becomes a row's error
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})


def main() -> None:
    """Answer calls until standard input ends."""
    # What a function prints must not get between the answers.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        said = answer(json.loads(line))
        set_timers(0)
        print(said, file=out, flush=True)


if __name__ == "__main__":
    main()
