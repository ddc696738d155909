"""The stamp `name@version` in a table file's Parquet footer.

Parsing the footer of a wide table is slow, so it is searched instead: the file must end as Parquet does and hold its
whole footer, and the stamp follows its key. Layout: https://parquet.apache.org/docs/file-format/ (footer, its length in
4 bytes, `PAR1`). Key and value are strings of a Thrift compact struct, each a field header 0x18, a length and bytes.
"""

from pathlib import Path

from schemas.rows import Row

STAMP = "nlac.schema"
_MAGIC = b"PAR1"
_KEY = b"\x18" + bytes([len(STAMP)]) + STAMP.encode() + b"\x18"
_TAIL = 32 << 10


class TableError(Exception):
    """A table file is missing, truncated, of another table, or not what its manifest says."""


def schema_stamp(model: type[Row]) -> str:
    """`name@version`, as in the Parquet footer."""
    return f"{model.TABLE}@{model.VERSION}"


def read_stamp(path: Path) -> str:
    """The `name@version` in a file's footer.

    Raises:
        TableError: not a whole Parquet file, or not one of ours.
    """
    try:
        footer = _footer(path)
    except (OSError, ValueError) as error:
        raise TableError(
            f"{path}: not a readable Parquet file ({error}); recompute the stage with force=true"
        ) from error
    at = footer.rfind(_KEY) + len(_KEY)
    if at < len(_KEY):
        raise TableError(f"{path}: no {STAMP} in its footer, so it was not written by nlac")
    return footer[at + 1 : at + 1 + footer[at]].decode()


def _footer(path: Path) -> bytes:
    with path.open("rb", buffering=0) as handle:
        size = handle.seek(0, 2)
        handle.seek(max(0, size - _TAIL))
        tail = handle.read()
        if len(tail) < 12 or tail[-4:] != _MAGIC:
            raise ValueError("it does not end as Parquet files do")
        length = int.from_bytes(tail[-8:-4], "little")
        if length + 12 > size:
            raise ValueError(f"its footer has {length} bytes, it has {size}")
        if length + 8 > len(tail):
            handle.seek(size - 8 - length)
            return handle.read(length)
        return tail[-8 - length : -8]
