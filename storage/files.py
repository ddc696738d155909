"""Small file operations: hash, and writes that survive a power cut."""

import hashlib
import os
from itertools import takewhile
from pathlib import Path


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


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, so that they survive a power cut: a new folder's name is
    content of the folder above it."""
    missing = list(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync(folder.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that a reader sees either the old text or the new one, at any instant."""
    make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)
    fsync(path.parent)
