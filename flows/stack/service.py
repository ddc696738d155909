"""A child process of the supervisor that is started again if it dies, after growing waits."""

import subprocess
import time
from dataclasses import dataclass, field

STEADY_SECONDS = 60.0  # one that lived as long is started again at once when it dies
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds; doubled while it keeps dying


@dataclass
class Service:
    """A child that is started again if it dies.

    Attributes:
        command: starts it.
        child: its process.
        started: when (monotonic seconds).
        ended: when it was found dead; None while it lives.
        deaths: in a row, each sooner than STEADY_SECONDS.
    """

    command: list[str]
    child: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    deaths: int = 0

    def is_due(self, now: float) -> bool:
        """Whether it is dead and has waited long enough to be started again."""
        if self.child.poll() is None:
            return False
        if self.ended is None:
            self.ended = now
            self.deaths = self.deaths + 1 if now - self.started < STEADY_SECONDS else 1
        return now - self.ended >= min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (self.deaths - 1))
