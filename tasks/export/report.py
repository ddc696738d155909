"""What came of an iteration: success beside the baseline and the iteration before, what was distilled, and alarms."""

from dataclasses import dataclass

import duckdb

from storage.sql.views import connect
from storage.store import Store
from tasks.export.alarms import Alarm, alarms
from tasks.export.measured import Measured, Success, Table


@dataclass(frozen=True)
class Report:
    """What came of an iteration. What was not measured is None.

    Attributes:
        success: on the eval tasks; None where the iteration has no evaluation.
        before: that of the last evaluation before.
        baseline: the player without a model: "random" or "nothing", and its success rate.
        proposals, distilled, unchanged: rows of refinements; those distilled; those of them that are the judged action.
        thoughts, leaked: thoughts that were measured; those with a leak before correction.
        texts, malformed: texts of backup, successor, evaluator and refiner; those without their format, or cut.
        alarms: what a person should look at.
        tables: the figures.
    """

    run: str
    iteration: int
    success: Success | None = None
    before: Success | None = None
    baseline: tuple[str, float] | None = None
    proposals: int | None = None
    distilled: int | None = None
    unchanged: int | None = None
    thoughts: int | None = None
    leaked: int | None = None
    texts: int | None = None
    malformed: int | None = None
    alarms: tuple[Alarm, ...] = ()
    tables: tuple[Table, ...] = ()


def report_of(store: Store, run: str, iteration: int) -> Report:
    """The report of an iteration over what a store has of it."""
    with connect(store) as database:
        return report_over(database, run, iteration)


def report_over(database: duckdb.DuckDBPyConnection, run: str, iteration: int) -> Report:
    """The report of an iteration, finished or not.

    Args:
        database: from `storage.sql.views.connect`.
        run: the run.
        iteration: its iteration.
    """
    measured = Measured(database, run, iteration)
    success, before = measured.success()
    outcome = {**measured.refined(), **measured.leaked(), **measured.malformed()}
    return Report(
        run, iteration, success, before, measured.baseline(), **outcome,
        alarms=tuple(alarms(measured)), tables=tuple(measured.tables()),
    )  # fmt: skip
