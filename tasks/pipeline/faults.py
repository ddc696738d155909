"""Whether what a stage made is data, or an outage that would pass as data."""

from collections.abc import Mapping, Sequence

from schemas.rows import Generation, Row
from tasks.runtime.stage import StageInterrupted

FAULTS = frozenset({"engine_error", "speaker_error", "environment_error", "score_failed", "not_replayed"})
"""Statuses of rows that an engine or an environment failed."""

LEAST = 3  # fewer failed rows are data, however few rows there are


def is_fault(row: Row) -> bool:
    """Whether an engine or an environment failed a row, or a text in it. An answer that the model wrote badly is no
    fault."""
    return row.status in FAULTS or any(
        isinstance(value, Generation) and value.finish_reason == "error" for _, value in row
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
