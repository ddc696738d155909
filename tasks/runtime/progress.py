"""Progress of a stage, reported while it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressState:
    """A snapshot: `done` of `total` items (`unit`) after `seconds`."""

    stage: str
    done: int
    total: int
    unit: str
    seconds: float

    @property
    def rate(self) -> float:
        """Items a second so far; 0 at the start."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Time left at that rate; None while nothing is done."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


Report = Callable[[ProgressState], None]


class Progress:
    """Counts a stage's items and reports every change.

    Args:
        stage: the stage's name.
        report: called with each snapshot; None reports to nobody.
    """

    def __init__(self, stage: str, report: Report | None = None) -> None:
        self.stage = stage
        self._report = report
        self._started = time.monotonic()
        self._done, self._total, self._unit = 0, 0, "items"

    def begin(self, total: int, unit: str) -> None:
        """A new phase of the stage, with its own items."""
        self._started = time.monotonic()
        self._done, self._total, self._unit = 0, total, unit
        self._tell()

    def advance(self, items: int = 1) -> None:
        """So many more are done."""
        self._done += items
        self._tell()

    def _tell(self) -> None:
        if self._report:
            elapsed = time.monotonic() - self._started
            self._report(ProgressState(self.stage, self._done, self._total, self._unit, elapsed))
