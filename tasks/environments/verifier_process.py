"""A process that verifies answers under limits; `verifier` starts it with `python -m`.

Each line of standard input is a call, {"function": "module:name", "arguments": [...], "seconds": s}. The answer is one
line: {"value": x}, {"error": "..."} if the function raised, or {"unusable": "..."} if it can't be imported.

The kernel enforces the limits. Two timers send signals that have no handler, so they end this process even inside C
code that never returns to the interpreter, and even after the parent is gone. Memory is limited too.
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
    """The answer to a call, as one line of JSON."""
    module, _, name = str(call["function"]).partition(":")
    set_timers(IMPORTING)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return json.dumps({"unusable": str(error)})
    set_timers(call["seconds"])
    try:
        return json.dumps({"value": function(*call["arguments"])})
    except Exception as error:  # noqa: BLE001 - anything a verifier raises becomes a row's error
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})


def main() -> None:
    """Answer calls until standard input ends."""
    # What a function prints must not mix with the answers.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        said = answer(json.loads(line))
        set_timers(0)
        print(said, file=out, flush=True)


if __name__ == "__main__":
    main()
