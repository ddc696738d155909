"""A table written row by row in constant memory, for imports larger than memory."""

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.frames import frame_schema
from schemas.manifest import TableEntry
from schemas.rows import Row
from storage.parquet.footers import STAMP, schema_stamp
from storage.parquet.tables import ROW_GROUP, TableDigest

PIECE_CHARS = 16 << 20
"""The most text in memory, characters. Rows with long texts make row groups smaller than ROW_GROUP."""


class TableStream:
    """Writes one table. It is a context manager, after which `entry` describes the file.

    File and digest are those of `storage.parquet.tables`, except that rows with long texts make smaller pieces, and so
    smaller row groups. Equal rows written this way have equal digests.

    Args:
        folder: where `<table>.parquet` goes.
        model: the row model.
    """

    def __init__(self, folder: Path, model: type[Row]) -> None:
        self._path, self._model = folder / f"{model.TABLE}.parquet", model
        self._schema = frame_schema(model)
        arrow = (
            pl.DataFrame(schema=self._schema).to_arrow().schema.with_metadata({STAMP: schema_stamp(model)})
        )
        self._writer = pq.ParquetWriter(self._path, arrow, compression="zstd")
        self._arrow: pa.Schema = arrow
        self._digest = TableDigest(self._schema)
        self._statuses: Counter[str] = Counter()
        self._rows: list[dict[str, Any]] = []
        self._chars = 0

    def append(self, row: Row) -> None:
        """Add a row."""
        values = row.model_dump()
        self._rows.append(values)
        self._statuses[row.status] += 1
        self._chars += sum(_chars(value) for value in values.values())
        if len(self._rows) >= ROW_GROUP or self._chars >= PIECE_CHARS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        frame = pl.DataFrame(self._rows, schema=self._schema, orient="row")
        self._digest.add(frame)
        self._writer.write_table(frame.to_arrow().replace_schema_metadata(self._arrow.metadata))
        self._rows, self._chars = [], 0

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return self._statuses.total()

    def entry(self) -> TableEntry:
        """The table as its manifest describes it; call it after closing."""
        return TableEntry(
            file=self._path.name,
            schema_version=schema_stamp(self._model),
            rows=self.rows,
            rejected=self.rows - self._statuses["ok"],
            statuses=dict(sorted(self._statuses.items())),
            digest=self._digest.hexdigest(),
        )

    def __enter__(self) -> "TableStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()


def _chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_chars, value)) if isinstance(value, list) else 8
