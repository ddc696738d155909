"""Reads files of logged conversations record by record, in constant memory.

| format | what the file holds |
|---|---|
| openai-chat | one JSON array of records, or JSON objects one after another |
| jsonl | one record per line; a broken line becomes a reject |
| parquet | one record per row; `messages` as a list of structs or as JSON text |
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson
import pyarrow.parquet as pq
from pyarrow import ArrowException

LogFormat = Literal["openai-chat", "jsonl", "parquet"]
BATCH_ROWS = 32  # Parquet rows decoded at a time


class UnreadableLog(Exception):
    """A file can't be imported; the message names the file, the fault and the remedy."""


class BrokenRecord(str):
    """The text of a record that is not JSON."""


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
        prefix = "item" if first == b"[" else ""
        for number, record in enumerate(ijson.items(stream, prefix, multiple_values=True)):
            yield number, record
    except ijson.JSONError as error:
        raise UnreadableLog(
            f"{path}: is not valid JSON after record {number} ({' '.join(str(error).split())[:120]}); nothing is "
            "imported. With one record per line, --format jsonl rejects only the broken ones"
        ) from error


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(stream):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError:  # UnicodeDecodeError is one
            yield number, BrokenRecord(line.decode(errors="replace"))


def _parquet(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    yield {
                        name: _parquet_value(name, value) for name, value in row.items() if value is not None
                    }
    except ArrowException as error:
        raise UnreadableLog(f"{path}: is not a readable Parquet file ({error})") from error


def _parquet_value(name: str, value: Any) -> Any:
    """A column's value, without a struct's NULL fields except a message's content. Nested values may be JSON text."""
    if isinstance(value, str) and name in ("messages", "traj", "tools"):
        try:
            return json.loads(value)
        except ValueError:
            return value  # the record will be rejected for it
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    if isinstance(value, dict):
        kept = {k: _without_nulls(v) for k, v in value.items() if v is not None}
        return {**kept, "content": None} if value.get("role") and value.get("content", "") is None else kept
    return value
