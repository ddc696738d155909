"""Writing a table into a staging folder, and its entry in the manifest."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from schemas.manifest import TableEntry
from schemas.rows import Row
from storage.parquet.footers import schema_stamp
from storage.parquet.tables import table_digest, write_table


def stage_table(folder: Path, model: type[Row], frame: pl.DataFrame) -> TableEntry:
    """Write `<table>.parquet` into a folder.

    Args:
        folder: the staging folder.
        model: the row model.
        frame: all rows, with exactly the model's columns.

    Returns:
        The table as its manifest describes it.

    Raises:
        TableError: the frame's columns or types are not the row model's.
    """
    file = f"{model.TABLE}.parquet"
    with ThreadPoolExecutor(
        1
    ) as aside:  # the digest takes one core while the file is compressed on the others
        digest = aside.submit(table_digest, frame)
        write_table(folder / file, model, frame)
    statuses = dict(sorted(frame["status"].value_counts().iter_rows()))
    return TableEntry(
        file=file,
        schema_version=schema_stamp(model),
        rows=frame.height,
        rejected=frame.height - statuses.get("ok", 0),
        statuses=statuses,
        digest=digest.result(),
    )
