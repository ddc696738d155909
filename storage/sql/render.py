"""Query results for people and programs: a drawn table, a line per value, or a stream of CSV, JSON or Parquet."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, Literal, TextIO, cast

import duckdb

from schemas.shown import counted, visible

Format = Literal["table", "csv", "json", "parquet", "vertical"]

SHOWN_ROWS = 200  # of a drawn table
CELL_CHARS = 60  # likewise
_NUMBERS = {"integer", "bigint", "hugeint", "float", "double", "decimal"}
_Texts = Sequence[str | None]
BATCH_ROWS = 8192
_NOT_JSON = re.compile(r"NaN|Infinity")


class _Visible:
    """A text stream that shows control characters."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text = text

    def write(self, said: str) -> int:
        return self._text.write(visible(said))

    def flush(self) -> None:
        self._text.flush()


def render(
    relation: duckdb.DuckDBPyRelation,
    how: Format,
    stream: BinaryIO,
    width: int = 10_000,
    *,
    terminal: bool = False,
) -> None:
    """Write a query's result.

    Args:
        relation: the query; it runs now.
        how: table: drawn, the first SHOWN_ROWS rows with long values cut, or rows as lines of column and value where
            its words are too wide; vertical: every row as such lines, whole; csv: header and rows, nested values as
            DuckDB writes them, NULL empty; json: an array, one object per line, NaN as null; parquet: zstd.
        stream: takes the bytes.
        width: longest line of a drawn table, characters.
        terminal: people read the stream, so control characters are shown; table and vertical always show them.

    Raises:
        duckdb.Error: the query fails while it runs.
    """
    if how == "parquet":
        import pyarrow.parquet as pq  # takes longer than a small query

        reader = relation.to_arrow_reader(BATCH_ROWS)
        with pq.ParquetWriter(stream, reader.schema, compression="zstd") as parquet:
            for batch in reader:
                parquet.write_batch(batch)
        return
    whole = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    text = cast(TextIO, _Visible(whole) if terminal or how in ("table", "vertical") else whole)
    try:
        if how == "table":
            _table(relation, text, width)
        elif how == "vertical":
            _vertical(relation.columns, _texts(relation), text)
        elif how == "csv":
            _csv(relation, text)
        else:
            _json(relation, text)
    finally:
        whole.detach()


def _table(relation: duckdb.DuckDBPyRelation, text: TextIO, width: int) -> None:
    """Columns share the width, and no word is broken, so that an id can be copied."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(islice(_texts(_cut(relation)), SHOWN_ROWS + 1))
    shown = [["NULL" if value is None else visible(value) for value in row] for row in rows[:SHOWN_ROWS]]
    lines = [[value.replace("\n", "\\n") for value in row] for row in shown]
    console = Console(file=text, width=width, color_system=None, legacy_windows=False)
    for between in ("_", "_\n"):  # a name is only broken where the table is too wide with it
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for number, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True)):
            cells = [row[number] for row in lines]
            broken = name.replace("_", between) if len(name) > max(map(len, cells), default=0) else name
            table.add_column(
                Text(broken), no_wrap=not any(" " in cell for cell in cells),
                justify="right" if kind.id in _NUMBERS else "left",
            )  # fmt: skip
        for row in lines:
            table.add_row(*map(Text, row))
        wanted = console.measure(table, options=console.options.update(width=10_000))
        if wanted.minimum <= width:
            table.leading = int(wanted.maximum > width)
            console.print(table)
            break
    else:
        _vertical(relation.columns, shown, text)
    more = (
        f"the first {SHOWN_ROWS} rows; --format csv has all"
        if len(rows) > SHOWN_ROWS
        else counted(len(rows), "row")
    )
    text.write(f"({more})\n")


def _cut(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The same with texts and nested values cut to CELL_CHARS, and fractions to four digits."""
    if len(set(relation.columns)) < len(relation.columns):
        return relation  # columns can't be told apart by name
    shown = []
    for name, kind in zip(relation.columns, relation.types, strict=True):
        quoted = '"' + name.replace('"', '""') + '"'
        if kind.id in ("varchar", "list", "struct", "map", "array"):
            text = f"{quoted}::varchar"
            cut = f"case when length({text}) > {CELL_CHARS} then left({text}, {CELL_CHARS - 1}) || '…' else {text} end"
            shown.append(f"{cut} as {quoted}")
        elif kind.id in ("float", "double"):
            written = f"format(case when abs({quoted}) < 1000 then '{{:.4g}}' else '{{:.6g}}' end, {quoted})"
            shown.append(f"{written} as {quoted}")
        else:
            shown.append(quoted)
    return relation.project(", ".join(shown))


def _texts(relation: duckdb.DuckDBPyRelation) -> Iterator[_Texts]:
    """Rows, each value as DuckDB writes it, NULL as None."""
    for batch in relation.project("columns(*)::varchar").to_arrow_reader(BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _vertical(columns: Sequence[str], rows: Iterable[_Texts], text: TextIO) -> None:
    names = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        text.write(f"--- row {number}\n")
        for name, value in zip(columns, row, strict=True):
            shown = "NULL" if value is None else value.replace("\n", "\n" + " " * (names + 2))
            text.write(f"{name:>{names}}  {shown}\n")


def _csv(relation: duckdb.DuckDBPyRelation, text: TextIO) -> None:
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(relation.columns)
    writer.writerows(_texts(relation))


def _json(relation: duckdb.DuckDBPyRelation, text: TextIO) -> None:
    separator = "[\n"
    # No column may have the alias' name: `to_json(alias)` must mean the row.
    alias = "result_row_" + "_" * max(map(len, relation.columns), default=0)
    for batch in relation.set_alias(alias).project(f"to_json({alias})::varchar").to_arrow_reader(BATCH_ROWS):
        for row in batch.column(0).to_pylist():
            text.write(separator + (_without_nan(row) if _NOT_JSON.search(row) else row))
            separator = ",\n"
    text.write("[]\n" if separator == "[\n" else "\n]\n")


def _without_nan(row: str) -> str:
    # DuckDB writes NaN and Infinity, which are not JSON.
    return json.dumps(json.loads(row, parse_constant=lambda _: None), ensure_ascii=False)
