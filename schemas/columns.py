"""Column types derived from the row models' annotations, for Polars and DuckDB."""

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

Kind = type | list["Kind"] | dict[str, "Kind"]
"""str, int, float or bool; [kind of the elements] for a list; {field: its kind} for a struct."""


def kind_of(annotation: Any) -> Kind:
    """The column type of one annotated field.

    Args:
        annotation: a scalar, `list[T]`, `T | None`, a string Literal, or a pydantic model (a struct).

    Raises:
        TypeError: the annotation has no column type; use one of those above.
    """
    if annotation in (str, int, float, bool):
        return annotation  # type: ignore[no-any-return]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return str
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1:
            return kind_of(inner[0])
    if origin is list:
        return [kind_of(args[0])]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: kind_of(f.annotation) for name, f in annotation.model_fields.items()}
    raise TypeError(f"no column type for {annotation!r}")
