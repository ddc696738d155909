"""Reads files of logged conversations record by record, in constant memory.

| format | what the file holds |
|---|---|
| openai-chat | one JSON array of records, or JSON objects one after another |
| jsonl | one record per line; a broken line becomes a reject |
| parquet | one record per row; `messages` as a list of structs or as JSON text |

A record that can't be decoded comes as a BrokenRecord. Only a JSON array that breaks off ends the reading.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

LogFormat = Literal["openai-chat", "jsonl", "parquet"]
BATCH_ROWS = 32  # Parquet rows decoded at a time
CHUNK = 1 << 16  # bytes of a JSON array read at a time


class UnreadableLog(Exception):
    """A file can't be imported; the message names the file, the fault and the remedy."""


DEEPEST = 200
"""How many levels of a record in a JSON array are read."""
TOO_DEEP = "it is nested too deep to be read"


@dataclass(frozen=True)
class BrokenRecord:
    """A record that can't be decoded: the kind of fault, why, and its text."""

    kind: str
    reason: str
    text: str


def read_records(path: Path, how: LogFormat) -> Iterator[tuple[int, Any]]:
    """The records of a file, numbered from 0 (jsonl: by line).

    Args:
        path: the file.
        how: its format.

    Yields:
        (number, record): decoded JSON with fractions as float or Decimal, or a BrokenRecord.

    Raises:
        UnreadableLog: the file can't be read, or is broken as a whole.
    """
    readers = {"openai-chat": _array, "jsonl": _lines}
    try:
        if how == "parquet":
            yield from enumerate(_parquet(path))
        else:
            with path.open("rb") as stream:
                yield from readers[how](stream, path)
    except OSError as error:
        raise UnreadableLog(f"{path}: can't be read ({error.strerror or error})") from error


def _array(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    first = stream.read(1)
    while first.isspace():
        first = stream.read(1)
    if first not in (b"[", b"{"):
        raise UnreadableLog(
            f"{path}: format openai-chat is a JSON array of records (or objects one after another), and this file "
            f"begins with {first!r}; try --format jsonl or parquet"
        )
    stream.seek(0)
    number = -1
    try:
        for number, record in enumerate(_values(stream, 1 if first == b"[" else 0)):
            yield number, record
    except (ijson.JSONError, ValueError, ArithmeticError) as error:  # a number that Python can't hold, too
        raise UnreadableLog(
            f"{path}: is not valid JSON after record {number} ({' '.join(str(error).split())[:120]}); nothing is "
            "imported. With one record per line, --format jsonl rejects only the broken ones"
        ) from error


def _values(stream: BinaryIO, base: int) -> Iterator[Any]:
    """The values at a depth of a JSON stream, without what is nested deeper than DEEPEST. (`ijson.items` keeps a path
    for each level, so its memory grows with the square of the depth.)"""
    depth, too_deep, builder = 0, False, ijson.ObjectBuilder()
    parser = ijson.get_backend("python") if _has_long_digits(stream) else ijson
    for event, value in parser.basic_parse(stream, multiple_values=True):
        begins, ends = event in ("start_map", "start_array"), event in ("end_map", "end_array")
        level = depth - 1 if ends else depth
        depth += begins - ends
        if level - base >= DEEPEST:
            too_deep = True
        elif level >= base:
            builder.event(event, value)
        if level == base and not begins and event != "map_key":
            yield BrokenRecord("too_deep", TOO_DEEP, "") if too_deep else builder.value
            too_deep, builder = False, ijson.ObjectBuilder()


def _has_long_digits(stream: BinaryIO) -> bool:
    """Whether a number in a file may have more digits than Python takes. The C code of ijson 3.6 meets Python's refusal
    with a reference freed once too often, and the process crashes some time later; its Python code does not."""
    last, found = b"", False
    while not found and (part := stream.read(CHUNK)):
        runs = re.findall(rb"[0-9]+", last + part)
        found = max(map(len, runs), default=0) > sys.int_info.default_max_str_digits
        last = runs[-1] if runs and part[-1:].isdigit() else b""
    stream.seek(0)
    return found


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(stream):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError:  # UnicodeDecodeError is one
            yield number, BrokenRecord("not_json", "the line is not JSON", line.decode(errors="replace"))
        except RecursionError:
            yield number, BrokenRecord("too_deep", TOO_DEEP, line.decode(errors="replace"))


def _parquet(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in _rows(batch):
                    yield (
                        row
                        if isinstance(row, BrokenRecord)
                        else {
                            name: _parquet_value(name, value)
                            for name, value in row.items()
                            if value is not None
                        }
                    )
    except ArrowException as error:
        raise UnreadableLog(f"{path}: is not a readable Parquet file ({error})") from error


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | BrokenRecord]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows > 1:
            for number in range(batch.num_rows):
                yield from _rows(batch.slice(number, 1))
        else:
            yield BrokenRecord("not_text", f"a text is not UTF-8 ({error.reason})", "")


def _parquet_value(name: str, value: Any) -> Any:
    """A column's value, without a struct's NULL fields except a message's content. Nested values may be JSON text."""
    if isinstance(value, str) and name in ("messages", "traj", "tools"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # the record will be rejected for it
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    if isinstance(value, dict):
        kept = {k: _without_nulls(v) for k, v in value.items() if v is not None}
        return {**kept, "content": None} if value.get("role") and value.get("content", "") is None else kept
    return value
