"""One pydantic model per table: the columns that stages write and SQL reads.

A model's docstring says what one row is. A field's description is what `nlac sql` shows for the column.
Rules for every table:
- Ids are deterministic and built from the id of the source row, so each row joins back to its source.
- A failed item is a row with `status != 'ok'` and `error`. It is never left out or replaced by a default.
- Rows hold no clock time, speed, or Prefect or MLflow id (the manifest does): equal inputs give equal rows.
- Every generated text has a `Generation` beside it.
A new column raises VERSION. It must be Optional, because it is NULL in files of older versions, or be named in OLDER.
"""

from schemas.rows.advantages import Advantage, Value
from schemas.rows.base import Generation, PriorityKind, Row, Split
from schemas.rows.demonstrations import Demonstration, PastTurn, TriedAction
from schemas.rows.evaluated import Evaluation, Retention
from schemas.rows.improvement import Critique, DistilReason, Future, Refinement
from schemas.rows.played import Episode, Reject, Transition
from schemas.rows.soft_values import ActionValue, SampledAction, TdTarget
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
    "ActionValue",
    "Advantage",
    "BellmanTarget",
    "BootstrapDraw",
    "CorrectedTarget",
    "Critique",
    "Demonstration",
    "DistilReason",
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
    "SampledAction",
    "Split",
    "TdTarget",
    "TrainingRow",
    "TrainingStep",
    "Transition",
    "TriedAction",
    "Value",
]

TABLES: dict[str, type[Row]] = {
    model.TABLE: model
    for model in (
        Episode, Transition, Reject, ReplaySample, BellmanTarget, CorrectedTarget, TrainingRow, TrainingStep, Priority,
        Future, Critique, Refinement, Evaluation, Retention, Demonstration, Value, Advantage,
        SampledAction, TdTarget, ActionValue,
    )
}  # fmt: skip
