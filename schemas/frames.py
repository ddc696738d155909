"""Polars schemas derived from the row models, so that each table's columns are defined once."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from schemas.columns import Kind, kind_of
from schemas.rows import Row

_SCALARS: dict[Any, pl.DataType] = {
    str: pl.String(), int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean(),
}  # fmt: skip


def dtype_of(annotation: Any) -> pl.DataType:
    """Polars type of one field annotation; see `schemas.columns.kind_of`."""
    return _dtype(kind_of(annotation))


def _dtype(kind: Kind) -> pl.DataType:
    if isinstance(kind, list):
        return pl.List(_dtype(kind[0]))
    if isinstance(kind, dict):
        return pl.Struct({name: _dtype(inner) for name, inner in kind.items()})
    return _SCALARS[kind]


def frame_schema(model: type[Row]) -> pl.Schema:
    """Column names and types of a table, in the row model's order."""
    return pl.Schema({name: dtype_of(f.annotation) for name, f in model.model_fields.items()})


def to_frame(model: type[Row], rows: Iterable[Row]) -> pl.DataFrame:
    """A frame with the table's exact schema, even if `rows` is empty."""
    return pl.DataFrame([row.model_dump() for row in rows], schema=frame_schema(model), orient="row")
