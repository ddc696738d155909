"""What a stage makes of its items, as tables and back.

The work on an item gives a row, or a dataclass whose fields are rows and lists of rows, no two of the same table. A
shard keeps rows, item after item, and in table `items` how many of each table are an item's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import polars as pl
from pydantic import TypeAdapter

from schemas.frames import to_frame
from schemas.rows import Row
from storage.parquet.tables import scan_table, write_table

ITEMS = "items.parquet"


@dataclass(frozen=True)
class _Piece:
    """A field of a result: one row, or a list of them."""

    field: str
    model: type[Row]
    many: bool


class ItemTables:
    """Tables of results of one type.

    Args:
        made: the type.

    Raises:
        TypeError: it holds something else than rows.
    """

    def __init__(self, made: type) -> None:
        self._made = made
        self._is_row = issubclass(made, Row)
        self._pieces = [_Piece("", made, False)] if self._is_row else list(_pieces(made))

    def rows(self, results: Mapping[int, Any]) -> dict[str, list[Row]]:
        """The rows of each table, item after item."""
        return {
            piece.model.TABLE: list(chain.from_iterable(self._rows(piece, r) for r in results.values()))
            for piece in self._pieces
        }

    def write(self, folder: Path, results: Mapping[int, Any]) -> None:
        """Write the tables of results, by the item's number, into a folder."""
        counts = {
            piece.model.TABLE: [len(self._rows(piece, result)) for result in results.values()]
            for piece in self._pieces
        }
        pl.DataFrame({"item": list(results), **counts}, schema=self._items).write_parquet(folder / ITEMS)
        tables = self.rows(results)
        for piece in self._pieces:
            table = piece.model.TABLE
            write_table(folder / f"{table}.parquet", piece.model, to_frame(piece.model, tables[table]))

    def read(self, folder: Path) -> dict[int, Any]:
        """The results in a folder, by the item's number."""
        counted = pl.read_parquet(folder / ITEMS)
        fields = [
            list(self._grouped(piece, folder, counted[piece.model.TABLE].to_list())) for piece in self._pieces
        ]
        if self._is_row:
            results: list[Any] = fields[0]
        else:
            names = [piece.field for piece in self._pieces]
            results = [
                self._made(**dict(zip(names, parts, strict=True))) for parts in zip(*fields, strict=True)
            ]
        return dict(zip(counted["item"].to_list(), results, strict=True))

    def _grouped(self, piece: _Piece, folder: Path, counts: list[int]) -> Iterator[Any]:
        frame = scan_table(folder / f"{piece.model.TABLE}.parquet", piece.model).collect()
        rows = iter(TypeAdapter(list[piece.model]).validate_python(frame.to_dicts()))  # type: ignore[name-defined]
        for count in counts:
            own = [next(rows) for _ in range(count)]
            yield own if piece.many else own[0]

    def _rows(self, piece: _Piece, result: Any) -> list[Row]:
        found = result if self._is_row else getattr(result, piece.field)
        return found if piece.many else [found]

    @cached_property
    def _items(self) -> pl.Schema:
        return pl.Schema({"item": pl.Int64(), **{piece.model.TABLE: pl.Int64() for piece in self._pieces}})


def _pieces(made: type) -> Iterator[_Piece]:
    for field, kind in get_type_hints(made).items():
        many = get_origin(kind) is list
        model = get_args(kind)[0] if many else kind
        if not (isinstance(model, type) and issubclass(model, Row)):
            raise TypeError(f"{made.__name__}.{field}: {kind} is no row and no list of rows")
        yield _Piece(field, model, many)
