"""Copies of a bucket's objects in its mirror: whole at any instant, of a known version, and lost without harm.

Copies are written below `.incoming` and renamed. `.versions` holds the ETag of a small file's copy and the sha256 of
its content, so a copy that a power cut damaged is of no version.
"""

import hashlib
import uuid
from collections.abc import Iterable
from pathlib import Path


class Copies:
    """The copies below a mirror.

    Args:
        root: the mirror.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, path: Path, content: bytes, etag: str | None) -> None:
        """Write a small file's copy, and note its version."""
        if not path.exists() or path.read_bytes() != content:
            self._write(path, content)
        self._write(self._version(path), _noted(content, etag))

    def of_version(self, path: Path, etag: str | None) -> bytes | None:
        """A small file's copy, if it is of this version."""
        version = self._version(path)
        if not (path.exists() and version.exists()):
            return None
        content = path.read_bytes()
        return content if version.read_bytes() == _noted(content, etag) else None

    def bring(self, path: Path, pieces: Iterable[bytes], sha256: str) -> tuple[int, str]:
        """Write a file's copy if its content has this digest; gives size and sha256 of what came."""
        aside, digest, size = self._aside(), hashlib.sha256(), 0
        try:
            with aside.open("wb") as copy:
                for piece in pieces:
                    copy.write(piece)
                    digest.update(piece)
                    size += len(piece)
            if digest.hexdigest() == sha256:
                path.parent.mkdir(parents=True, exist_ok=True)
                aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return size, digest.hexdigest()

    def _write(self, path: Path, content: bytes) -> None:
        aside = self._aside()
        aside.write_bytes(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.replace(path)

    def _aside(self) -> Path:
        (self._root / ".incoming").mkdir(exist_ok=True)
        return self._root / ".incoming" / uuid.uuid4().hex

    def _version(self, path: Path) -> Path:
        return self._root / ".versions" / path.relative_to(self._root)


def _noted(content: bytes, etag: str | None) -> bytes:
    return f"{etag} {hashlib.sha256(content).hexdigest()}".encode()
