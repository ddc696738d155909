"""One pydantic model per table: the columns every stage writes and SQL reads.

The docstring of a model says what one row is; a field's description is what `nlac sql` shows for the column.
Rules that hold for every table:
- ids are deterministic, built from the id of the row it came from, so each row joins back to its source;
- a failed item is a row with `status != 'ok'` and `error`, never left out and never replaced by a default;
- no clock time, speed or Prefect/MLflow id stands in a row (they live in the manifest): equal inputs give
  equal rows;
- every generated text has a `Generation` beside it.
Adding a column raises VERSION; files of older versions still read, the new column as NULL, so it must be
Optional.
"""

from schemas.rows.base import Generation, PriorityKind, Row, Split
from schemas.rows.demonstrations import Demonstration, PastTurn, TriedAction
from schemas.rows.evaluated import Evaluation, Retention
from schemas.rows.improvement import Critique, Future, Refinement
from schemas.rows.played import Episode, Reject, Transition
from schemas.rows.targets import (
    BellmanTarget,
    BootstrapDraw,
    CorrectedTarget,
    DrawnText,
    Priority,
    ReplaySample,
)
from schemas.rows.training import TrainingRow, TrainingStep

__all__ = [
    "TABLES",
    "BellmanTarget",
    "BootstrapDraw",
    "CorrectedTarget",
    "Critique",
    "Demonstration",
    "DrawnText",
    "Episode",
    "Evaluation",
    "Future",
    "Generation",
    "PastTurn",
    "Priority",
    "PriorityKind",
    "Refinement",
    "Reject",
    "ReplaySample",
    "Retention",
    "Row",
    "Split",
    "TrainingRow",
    "TrainingStep",
    "Transition",
    "TriedAction",
]

TABLES: dict[str, type[Row]] = {
    model.TABLE: model
    for model in (
        Episode, Transition, Reject, ReplaySample, BellmanTarget, CorrectedTarget, TrainingRow, TrainingStep, Priority,
        Future, Critique, Refinement, Evaluation, Retention, Demonstration,
    )
}  # fmt: skip
