"""One table as a Parquet file: written with a schema stamp, digested by content, read back from any version."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from schemas.frames import frame_schema
from schemas.rows import Row
from storage.parquet.footers import STAMP, TableError, read_stamp, schema_stamp

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

ROW_GROUP = 8192


def write_table(path: Path, model: type[Row], frame: pl.DataFrame) -> None:
    """Write a frame that has exactly the model's columns: zstd, row groups of 8,192, the stamp in the footer.

    Raises:
        TableError: the frame's columns or types are not the row model's.
    """
    if frame.schema != frame_schema(model):
        raise TableError(f"{path.name}: columns {frame.schema} are not those of {schema_stamp(model)}")
    frame.write_parquet(
        path,
        compression="zstd",
        row_group_size=ROW_GROUP,
        metadata={STAMP: schema_stamp(model)},
        statistics=True,
    )


def table_digest(frame: pl.DataFrame) -> str:
    """sha256 of the rows' content in order; it does not depend on chunks, compression or file layout."""
    digest = TableDigest(frame.schema)
    digest.add(frame)
    return digest.hexdigest()


class TableDigest:
    """The digest of a table that comes in pieces: `table_digest` of the whole, if every piece but the last has a
    multiple of ROW_GROUP rows."""

    def __init__(self, schema: pl.Schema) -> None:
        self._digest = hashlib.sha256(repr(list(schema.items())).encode())

    def add(self, piece: pl.DataFrame) -> None:
        """Add the next rows."""
        for rows in _slices(piece):
            with io.BufferedWriter(_Into(self._digest)) as sink:
                rows.write_ipc_stream(sink, compression="uncompressed", compat_level=pl.CompatLevel.oldest())

    def hexdigest(self) -> str:
        """The digest of the rows so far."""
        return self._digest.hexdigest()


class _Into(io.RawIOBase):
    """A file whose bytes only go into a digest."""

    def __init__(self, digest: "hashlib._Hash") -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, piece: "Buffer") -> int:
        self._digest.update(piece)
        return memoryview(piece).nbytes


def _slices(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    # A fresh copy of every slice: the Arrow buffers of a view would depend on its offset.
    for start in range(0, frame.height, ROW_GROUP):
        yield frame.slice(start, ROW_GROUP).rechunk().clone().select(pl.all().gather(pl.int_range(pl.len())))


def scan_tables(paths: Sequence[Path], model: type[Row]) -> pl.LazyFrame:
    """A lazy frame over files of one table, in order, with the model's current columns. A column that an older file
    lacks is NULL, or what the model's OLDER says.

    Raises:
        TableError: a file is unreadable, holds another table, or is of a newer version than this program.
    """
    for path in paths:
        name, _, version = read_stamp(path).partition("@")
        if name != model.TABLE or int(version) > model.VERSION:
            raise TableError(
                f"{path}: holds {name}@{version}, this program reads {schema_stamp(model)} and older"
            )
    frame = pl.scan_parquet(
        list(paths),
        schema=frame_schema(model),
        missing_columns="insert",
        # A Generation of an older file lacks fields.
        cast_options=pl.ScanCastOptions(missing_struct_fields="insert"),
    )
    return frame.with_columns(pl.col(name).fill_null(value) for name, value in model.OLDER.items())


def scan_table(path: Path, model: type[Row]) -> pl.LazyFrame:
    """A lazy frame over one file; see scan_tables."""
    return scan_tables([path], model)
