"""Where committed data lies: in the data root's own folders, or in a bucket that the data root mirrors.

`Place` is all that the store asks of either. `storage.mirror` is the bucket.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from schemas.data_url import url_of
from schemas.manifest import MANIFEST, FileEntry
from storage.committed import Taken
from storage.files import PRIVATE_FILE, PUBLIC_FILE, fsync, fsync_tree, replace_text, sha256_file

Examined = tuple[FileEntry, int | None, str | None]
"""A file of a manifest, its size where it is there, and its sha256 where its content was read."""
Change = Callable[[bytes | None], str | None]
"""Gives a small file's new content for its old one; None leaves it."""


@dataclass(frozen=True)
class Unlisted:
    """A file that no manifest lists, of a killed or defeated writer for instance.

    Attributes:
        path: below the data root.
        shown: how a message names it.
        bytes: its size.
        abandoned: nobody finishes it any more, so that it may go.
    """

    path: Path
    shown: str
    bytes: int
    abandoned: bool


class Place(Protocol):
    """Committed data. Paths lie below the data root."""

    def read(self, path: Path) -> bytes | None:
        """A small file as it is now; None where there is none."""

    def change(self, path: Path, change: Change, *, private: bool = False) -> None:
        """Replace a small file by what `change` makes of it. Nobody else's change between the two is lost. A private
        one is its user's alone to read in a folder; in a bucket the bucket's own rules say who reads what."""

    def refresh(self, path: Path) -> None:
        """Bring a small file's copy in the data root up to date."""

    def names(self, folder: Path) -> list[str]:
        """The folders in a folder, without hidden ones, sorted."""

    def attempts(self, home: Path) -> list[str]:
        """Names of a stage's folders that a new attempt must not take, as of now."""

    def publish(self, staged: Path, final: Path, entries: Sequence[FileEntry]) -> None:
        """Make a staged folder, which holds its manifest, visible as a whole.

        Args:
            staged: the folder.
            final: where it is to be.
            entries: the files that its manifest lists.

        Raises:
            Taken: there is one of that name; none is ever overwritten.
        """

    def fetch(self, folder: Path, entries: Sequence[FileEntry]) -> None:
        """Bring copies of a folder's files here that are not; what is gone is left out."""

    def examine(
        self, folder: Path, entries: Sequence[FileEntry], *, content: bool, stored: bool
    ) -> Iterable[Examined]:
        """Measure a folder's files.

        Args:
            folder: the committed folder.
            entries: its files.
            content: read them too. A copy is brought here, or replaced if it is damaged.
            stored: read what is stored instead of the copy.
        """

    def unlisted(self, committed: Mapping[Path, Sequence[FileEntry]]) -> Iterator[Unlisted]:
        """Files that no manifest lists.

        Args:
            committed: every committed folder, and the files that its manifest lists.
        """

    def remove(self, path: Path, aside: Path) -> None:
        """Remove a committed folder, a file or a run.

        Args:
            path: what goes.
            aside: a name that is free, in a folder that the caller removes.
        """

    def pull(self) -> None:
        """Bring copies of all small files here, and remove those of folders that are gone."""

    def shown(self, path: Path, entry: FileEntry | None = None) -> str:
        """How a message names a path, or a file of a committed folder."""


class Files:
    """The data root's own folders. A change is a rename, and a lock keeps two changes apart.

    Args:
        root: the data root.
        name: how messages name it; of the copies in a mirror its URL.
    """

    def __init__(self, root: Path, name: str = "") -> None:
        self._root, self._name = root, name or str(root)

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def change(self, path: Path, change: Change, *, private: bool = False) -> None:
        run = path.relative_to(self._root).parts[0]
        with FileLock(self._root / run / ".current.lock"):
            after = change(self.read(path))
            if after is not None:
                replace_text(path, after, PRIVATE_FILE if private else PUBLIC_FILE)

    def refresh(self, path: Path) -> None:
        return

    def names(self, folder: Path) -> list[str]:
        return names_in(folder)

    def attempts(self, home: Path) -> list[str]:
        return names_in(home)

    def publish(self, staged: Path, final: Path, entries: Sequence[FileEntry]) -> None:
        fsync_tree(staged)
        try:
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise Taken(
                f"{final}: another process committed it; a committed folder is never overwritten"
            ) from None
        fsync(final.parent)

    def fetch(self, folder: Path, entries: Sequence[FileEntry]) -> None:
        return

    def examine(
        self, folder: Path, entries: Sequence[FileEntry], *, content: bool, stored: bool
    ) -> Iterator[Examined]:
        for entry in entries:
            yield examine_file(folder / entry.path, entry, content)

    def unlisted(self, committed: Mapping[Path, Sequence[FileEntry]]) -> Iterator[Unlisted]:
        for folder, entries in committed.items():
            own = {folder / name for name in (*(entry.path for entry in entries), MANIFEST, "stage.log")}
            for path in sorted({path for path in folder.rglob("*") if path.is_file()} - own):
                yield Unlisted(path, str(path), path.stat().st_size, abandoned=False)

    def remove(self, path: Path, aside: Path) -> None:
        path.rename(aside)  # gone as a whole, whenever this is killed

    def pull(self) -> None:
        return

    def shown(self, path: Path, entry: FileEntry | None = None) -> str:
        return f"{self._name}{str(path / entry.path if entry else path).removeprefix(str(self._root))}"


def examine_file(path: Path, entry: FileEntry, content: bool) -> Examined:
    """Measure a file of this machine; one of another size is not read."""
    if not path.is_file():
        return entry, None, None
    size = path.stat().st_size
    return entry, size, sha256_file(path) if content and size == entry.bytes else None


def names_in(home: Path) -> list[str]:
    """The folders in a folder of this machine, without hidden ones, sorted; none where it does not exist."""
    try:
        with os.scandir(home) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []


def place_of(root: Path) -> Place:
    """Where the committed data of a data root lies."""
    url = url_of(root)
    if url is None:
        return Files(root)
    from storage.mirror import Mirror
    from storage.objects import Objects

    return Mirror(root, Objects(url))
