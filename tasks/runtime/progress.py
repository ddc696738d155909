"""Progress of a stage, reported while it runs, and now and then written to its log."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from schemas.manifest import RoleCost

LOG_SECONDS = 60.0
"""At most so often a stage's log says how far it has come."""


@dataclass(frozen=True)
class ProgressState:
    """A snapshot: `done` of `total` items (`unit`) after `seconds`.

    Attributes:
        loss: of the last optimizer step; None in a stage that does not train.
        roles: what each role has cost in this stage so far.
        faults: requests that were answered by an error or asked again, by kind.
    """

    stage: str
    done: int
    total: int
    unit: str
    seconds: float
    loss: float | None = None
    roles: Mapping[str, RoleCost] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Items a second so far; 0 at the start."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Time left at that rate; None while nothing is done."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


Report = Callable[[ProgressState], None]


def progress_line(state: ProgressState) -> str:
    """One line for people: items done, rate, time left, loss."""
    counted = f"{state.done}/{state.total} {state.unit}"
    left = state.remaining_seconds
    if left is not None and state.seconds >= 1.0:  # else it is too early for a rate
        counted += f", {state.rate:.2f}/s"
        counted += f", {left:.0f} s left" if state.done < state.total else ""
    return counted if state.loss is None else f"{counted}, loss {state.loss:.4f}"


class Progress:
    """Counts a stage's items and reports every change.

    Args:
        stage: the stage's name.
        report: called with each snapshot; None reports to nobody.
        log: gets a line at the end of each phase, and at most every LOG_SECONDS before.
        costs: asked for what roles have cost so far, and for faults by kind.
    """

    def __init__(
        self,
        stage: str,
        report: Report | None = None,
        log: logging.Logger | None = None,
        costs: Callable[[], tuple[Mapping[str, RoleCost], Mapping[str, int]]] = lambda: ({}, {}),
    ) -> None:
        self.stage = stage
        self._report, self._log, self._costs = report, log, costs
        self._started = self._logged = time.monotonic()
        self._done, self._total, self._unit = 0, 0, "items"

    def begin(self, total: int, unit: str) -> None:
        """A new phase of the stage, with its own items."""
        self._started = self._logged = time.monotonic()
        self._done, self._total, self._unit = 0, total, unit
        self._tell()

    def advance(self, items: int = 1, *, loss: float | None = None) -> None:
        """So many more are done, the last of them with this loss."""
        self._done += items
        self._tell(loss)

    def _tell(self, loss: float | None = None) -> None:
        now = time.monotonic()
        roles, faults = self._costs()
        state = ProgressState(
            self.stage, self._done, self._total, self._unit, now - self._started, loss, roles, faults
        )
        if self._report:
            self._report(state)
        over = self._done >= self._total > 0
        if self._log and (over or now - self._logged >= LOG_SECONDS):
            self._logged = now
            self._log.info("%s", progress_line(state))
