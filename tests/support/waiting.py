"""Waiting for what another process does."""

import subprocess
import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    seconds: float,
    what: str,
    *,
    every: float = 0.1,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Poll a condition.

    Args:
        condition: comes true in the end.
        seconds: longest wait.
        what: is waited for, in the words of the failure.
        every: seconds between two looks.
        process: must bring it about; its end ends the wait.

    Raises:
        AssertionError: the condition does not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"the process has ended before {what}"
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(every)
