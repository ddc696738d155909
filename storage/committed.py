"""A committed stage folder: its manifest, its tables, and whether its files are whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from schemas.manifest import MANIFEST, FileEntry, Manifest, Summary
from schemas.rows import TABLES
from storage.sealed import unseal

if TYPE_CHECKING:
    import polars as pl

    from storage.places import Place

Made = TypeVar("Made", bound=Summary)


class StoreError(Exception):
    """The store can't do what was asked; the message names the file and the remedy."""


class Missing(StoreError):
    """A file, or a part of it, is gone; the message names it."""


class Taken(StoreError):
    """Another process committed the folder first; the message names it."""


class Unreachable(StoreError):
    """A bucket's server did not do what was asked, after all retries; it may later."""


@dataclass(frozen=True)
class Committed:
    """A committed stage folder.

    Attributes:
        path: where its files are read; in the mirror of a bucket, once `fetch` has brought them.
        manifest: what it holds.
        place: where it is stored.
    """

    path: Path
    manifest: Manifest
    place: "Place" = field(compare=False, repr=False)

    def fetch(self, below: str = "") -> Path:
        """Bring its files, or those whose path begins so, to where they are read."""
        self.place.fetch(self.path, self._entries(below))
        return self.path / below

    def _entries(self, below: str) -> list[FileEntry]:
        return [entry for entry in self.manifest.files if entry.path.startswith(below)]

    def scan(self, table: str) -> "pl.LazyFrame":
        """One of its tables, lazily; see `storage.parquet.tables`."""
        from storage.parquet.tables import scan_table  # Polars, which queries do not need

        return scan_table(self.fetch(self.manifest.tables[table].file), TABLES[table])

    def check(self, *, content: bool, below: str = "") -> None:
        """Compare the folder with its manifest: sizes, and with `content` every file's sha256.

        Args:
            content: read the files, where they are read.
            below: only files whose path begins so.

        Raises:
            StoreError: a file is missing, truncated or changed; it is named.
        """
        for fault in self.faults(content=content, below=below):
            raise fault

    def faults(self, *, content: bool, below: str = "", stored: bool = False) -> Iterator[StoreError]:
        """What `check` raises, for every file; with `stored` of what is stored, also where a copy is read."""
        m = self.manifest
        remedy = f"restore it, or recompute {m.stage} of iteration {m.iteration} with force=true"
        examined = self.place.examine(self.path, self._entries(below), content=content, stored=stored)
        for entry, size, sha256 in examined:
            shown = self.place.shown(self.path, entry)
            if size is None:
                yield Missing(f"{shown}: named in the manifest and missing; {remedy}")
            elif size != entry.bytes:
                yield Missing(f"{shown}: {size} bytes, the manifest says {entry.bytes}; {remedy}")
            elif content and sha256 != entry.sha256:
                yield StoreError(f"{shown}: its sha256 is not the manifest's; {remedy}")


def scan_parts(parts: Sequence[Committed], table: str) -> "pl.LazyFrame":
    """The same table of several folders as one lazy frame, in their order; see `storage.parquet.tables`."""
    from storage.parquet.tables import scan_tables

    return scan_tables([c.fetch(c.manifest.tables[table].file) for c in parts], TABLES[table])


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder of this machine.

    Raises:
        StoreError: missing, truncated or of another program version; the file is named.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = None
    return parse_manifest(content, str(path), Manifest)


def parse_manifest(content: bytes | None, shown: str, model: type[Made]) -> Made:
    """The content of a manifest, or the part of it that queries need (`Summary`), in a fifth of the time.

    Args:
        content: None: there is none.
        shown: how messages name the file.
        model: Manifest or Summary.

    Raises:
        StoreError: missing, truncated or of another program version.
    """
    if content is None:
        raise StoreError(f"{shown}: missing; the folder is not a committed stage and is not used")
    try:
        return model.model_validate_json(unseal(content))
    except ValueError as error:  # pydantic's ValidationError is one
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"{shown}: broken manifest ({reason}); recompute the stage with force=true"
        ) from None
