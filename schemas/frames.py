"""Polars schemas derived from the row models, so that a table's columns are written down once."""

import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin

import polars as pl
from pydantic import BaseModel

from schemas.rows import Row

_SCALARS: dict[Any, pl.DataType] = {
    str: pl.String(), int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean(),
}  # fmt: skip


def dtype_of(annotation: Any) -> pl.DataType:
    """Polars type of one field annotation.

    Args:
        annotation: a scalar, `list[T]`, `T | None`, a string Literal, or a pydantic model (a struct).

    Raises:
        TypeError: the annotation has no column type; use one of those above.
    """
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return pl.String()
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1:
            return dtype_of(inner[0])
    if origin is list:
        return pl.List(dtype_of(args[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pl.Struct({name: dtype_of(f.annotation) for name, f in annotation.model_fields.items()})
    raise TypeError(f"no column type for {annotation!r}")


def frame_schema(model: type[Row]) -> pl.Schema:
    """Column names and types of a table, in the order of the row model's fields."""
    return pl.Schema({name: dtype_of(f.annotation) for name, f in model.model_fields.items()})


def to_frame(model: type[Row], rows: Iterable[Row]) -> pl.DataFrame:
    """A frame with the table's exact schema, also when `rows` is empty."""
    return pl.DataFrame([row.model_dump() for row in rows], schema=frame_schema(model), orient="row")
