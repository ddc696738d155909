"""Whether what a stage made is data, or an outage that would pass as data."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import get_args

from schemas.rows import Generation, Row
from tasks.runtime.stage import StageInterrupted

FAULTS = frozenset({"engine_error", "speaker_error", "environment_error", "score_failed", "not_replayed"})
"""Statuses of rows that an engine or an environment failed."""

LEAST = 3  # fewer failed rows are data, however few rows there are


def is_fault(row: Row) -> bool:
    """Whether an engine or an environment failed a row, or a text in it. An answer that the model wrote badly is no
    fault."""
    if row.status in FAULTS:
        return True
    made: list[Generation | None] = [getattr(row, name) for name in _generations(type(row))]
    return any(one is not None and one.finish_reason == "error" for one in made)


@cache
def _generations(model: type[Row]) -> tuple[str, ...]:
    """The columns that hold a text's provenance."""
    fields = model.model_fields.items()
    return tuple(
        name for name, field in fields if Generation in (field.annotation, *get_args(field.annotation))
    )


def refuse_outage(stage: str, tables: Mapping[str, Sequence[Row]], max_failed_share: float) -> None:
    """Refuse an output with too many faults in one of its tables.

    Args:
        stage: the stage's name.
        tables: rows of each table.
        max_failed_share: of a table's rows.

    Raises:
        StageInterrupted: there are more, and at least LEAST; the message holds the first one's error.
    """
    for table, rows in tables.items():
        failed = [row for row in rows if is_fault(row)]
        if len(failed) >= LEAST and len(failed) > max_failed_share * len(rows):
            first = next((row.error for row in failed if row.error), "no reason given")
            raise StageInterrupted(
                f"{stage}: an engine or the environment failed {len(failed)} of {len(rows)} {table}, more than "
                f"faults.max_failed_share {max_failed_share:g} allows; nothing is committed. Run the stage again once "
                f"that is put right: it goes on from the requests that were answered. The first: {first}"
            )
