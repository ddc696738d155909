"""Lines that each hold a checksum (`crc32<tab>record`), so that damage costs the lines that it hits and no other."""

import zlib

_SUM = 9  # characters of a checksum and its tab


def checked_line(record: bytes) -> bytes:
    """A record, which holds no line break, as a line."""
    return _sum(record) + record + b"\n"


def read_checked_lines(content: bytes) -> tuple[list[bytes], int, int]:
    """The records of a file.

    Returns:
        (records, how many lines were damaged, the end of the last whole line). A last line without its end counts as
        damaged: a process that is killed while it writes leaves one.
    """
    *lines, torn = content.split(b"\n")
    records = [line[_SUM:] for line in lines if line[:_SUM] == _sum(line[_SUM:])]
    return records, len(lines) - len(records) + bool(torn), len(content) - len(torn)


def _sum(record: bytes) -> bytes:
    return b"%08x\t" % zlib.crc32(record)
