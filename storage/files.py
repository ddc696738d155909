"""Small file operations: hash, and writes that survive a power cut."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from socket import gethostname

FULL = 1 << 20  # bytes; a disk with fewer free is as good as full
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
PUBLIC_FOLDER, PUBLIC_FILE = 0o777, 0o666  # less what the user's umask takes
"""Modes of what other users of the machine can't read."""


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in constant memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Flush a file's or folder's data to the device."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Flush everything below a folder, and the folder itself last."""
    for path in sorted(folder.rglob("*"), reverse=True):
        fsync(path)
    fsync(folder)


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Name a full disk where a library does not: torch raises RuntimeError when it can't write a file, Polars an error
    of its own.

    Raises:
        OSError: something else was raised, and the disk of the folder is full.
    """
    try:
        yield
    except (OSError, BaseExceptionGroup):
        raise
    except Exception as error:
        if shutil.disk_usage(folder).free < FULL:
            raise OSError(errno.ENOSPC, f"No space left on device ({error})", str(folder)) from error
        raise


def make_folder(path: Path, mode: int = PUBLIC_FOLDER) -> None:
    """Make a folder and those above it that are missing, so that they survive a power cut: a new folder's name is
    content of the folder above it. The mode is the folder's own; one that is there keeps what it has."""
    missing = list(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(mode, parents=True, exist_ok=True)
    for folder in missing:
        fsync(folder.parent)


def beside(path: Path) -> Path:
    """A name in the same folder for what is to replace a path. No other process takes it, on this host or on another
    that shares the folder."""
    return path.with_name(f".{path.name}.{gethostname()}.{os.getpid()}")


def replace_text(path: Path, text: str, mode: int = PUBLIC_FILE) -> None:
    """Write a small file so that a reader sees either the old text or the new one, at any instant."""
    make_folder(path.parent)
    aside = beside(path)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)
    fsync(path.parent)
