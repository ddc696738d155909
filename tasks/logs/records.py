"""Reads files of logged conversations record by record, in constant memory.

| format | what the file holds |
|---|---|
| openai-chat | one JSON array of records, or JSON objects one after another |
| jsonl | one record per line; a broken line becomes a reject |
| parquet | one record per row; `messages` as a list of structs or as JSON text |

A record that can't be decoded comes as a BrokenRecord. Only where nobody can tell the end of a record in a JSON array
does the reading end.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

LogFormat = Literal["openai-chat", "jsonl", "parquet"]
BATCH_ROWS = 32  # Parquet rows decoded at a time
CHUNK = 1 << 16  # bytes of a JSON array read at a time, at least

_SCALAR = rb'(?P<scalar>"(?:[^"\\]++|\\.)*+"|[-+.0-9eE]++|true|false|null|NaN|Infinity)'
_BETWEEN = re.compile(rb"[\s,]++|[\[\]{}]|" + _SCALAR, re.DOTALL)
"""A token where records are looked for."""
_WITHIN = re.compile(rb"(?:[\s,:]++|" + _SCALAR + rb")++|[\[\]{}]", re.DOTALL)
"""The same within a record: all up to the next bracket is one token."""
_CLOSERS = {ord("["): ord("]"), ord("{"): ord("}")}


class UnreadableLog(Exception):
    """A file can't be imported; the message names the file, the fault and the remedy."""


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
        (number, record): decoded JSON (of Parquet, Python's values), or a BrokenRecord.

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
        for number, text in enumerate(_values(stream, 1 if first == b"[" else 0)):
            yield number, _decoded(text)
    except ValueError as error:
        raise UnreadableLog(
            f"{path}: is not valid JSON after record {number} ({error}); nothing is imported. With one record per "
            "line, --format jsonl rejects only the broken ones"
        ) from error


def _values(stream: BinaryIO, base: int) -> Iterator[bytes]:
    """The texts of the values at a depth of a JSON stream. Brackets and strings tell where one ends, so a value that
    can't be decoded hides no other.

    Raises:
        ValueError: nobody can tell where a value ends: a bracket or a quote is missing, or there is one too many.
    """
    text, at, begin, more = b"", 0, 0, True
    closers: list[int] = []
    while True:
        inside = len(closers) > base
        token = (_WITHIN if inside else _BETWEEN).match(text, at)
        unfinished = text[at : at + 1] == b'"' or len(text) - at < len("Infinity")
        if more and (unfinished if token is None else token.end() == len(text)):
            kept = begin if inside else at
            size = max(CHUNK, len(text) - kept)  # so that a long text is not read anew many times
            read = stream.read(size)
            text, at, begin, more = text[kept:] + read, at - kept, 0, bool(read)
            continue
        if token is None:
            if at == len(text) and not closers:
                return
            raise ValueError(f"at {text[at : at + 20]!r}" if at < len(text) else "it breaks off")
        first, start, at = text[at], at, token.end()
        if len(closers) < base and (token["scalar"] or first == ord("{")):
            raise ValueError(f"{text[start : start + 20]!r} follows its end")
        if first in _CLOSERS:
            begin = begin if inside else start
            closers.append(_CLOSERS[first])
        elif first in _CLOSERS.values():
            if not closers or closers.pop() != first:
                raise ValueError(f"{chr(first)} closes nothing")
            if inside and len(closers) == base:
                yield text[begin:at]
        elif not inside and token["scalar"]:
            yield text[start:at]


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    yield from ((number, _decoded(line)) for number, line in enumerate(stream) if line.strip())


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # of bytes that are no UTF-8, and of a number with too many digits, too
        reason = f"it can't be read as JSON: {' '.join(str(error).split())[:120]}"
        return BrokenRecord("not_json", reason, text.decode(errors="replace"))
    except RecursionError:
        return BrokenRecord("too_deep", TOO_DEEP, text.decode(errors="replace"))


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
