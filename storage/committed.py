"""A committed stage folder: its manifest, its tables, and whether its files are whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from schemas.manifest import Manifest, Summary
from schemas.rows import TABLES
from storage.files import sha256_file
from storage.sealed import unseal

if TYPE_CHECKING:
    import polars as pl

_Manifest = TypeVar("_Manifest", bound=Summary)


class StoreError(Exception):
    """The store can't do what was asked; the message names the file and the remedy."""


class Missing(StoreError):
    """A file, or a part of it, is gone; the message names it."""


@dataclass(frozen=True)
class Committed:
    """A committed stage folder."""

    path: Path
    manifest: Manifest

    def scan(self, table: str) -> "pl.LazyFrame":
        """One of its tables, lazily; see `storage.parquet.tables`."""
        from storage.parquet.tables import scan_table  # Polars, which queries do not need

        return scan_table(self.path / self.manifest.tables[table].file, TABLES[table])

    def check(self, *, content: bool, below: str = "") -> None:
        """Compare the folder with its manifest: sizes, and with `content` every file's sha256.

        Args:
            content: read the files.
            below: only files whose path begins so.

        Raises:
            StoreError: a file is missing, truncated or changed; it is named.
        """
        for fault in self.faults(content=content, below=below):
            raise fault

    def faults(self, *, content: bool, below: str = "") -> Iterator[StoreError]:
        """What `check` raises, for every file."""
        m = self.manifest
        remedy = f"restore it, or recompute {m.stage} of iteration {m.iteration} with force=true"
        for entry in (entry for entry in self.manifest.files if entry.path.startswith(below)):
            path = self.path / entry.path
            if not path.is_file():
                yield Missing(f"{path}: named in the manifest and missing; {remedy}")
            elif path.stat().st_size != entry.bytes:
                yield Missing(
                    f"{path}: {path.stat().st_size} bytes, the manifest says {entry.bytes}; {remedy}"
                )
            elif content and sha256_file(path) != entry.sha256:
                yield StoreError(f"{path}: its sha256 is not the manifest's; {remedy}")


def scan_parts(parts: Sequence[Committed], table: str) -> "pl.LazyFrame":
    """The same table of several folders as one lazy frame, in their order; see `storage.parquet.tables`."""
    from storage.parquet.tables import scan_tables

    return scan_tables([c.path / c.manifest.tables[table].file for c in parts], TABLES[table])


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed folder.

    Raises:
        StoreError: missing, truncated or of another program version; the file is named.
    """
    return _read_manifest(folder, Manifest)


def read_summary(folder: Path) -> Summary:
    """The part of a manifest that queries need, in a fifth of the time; raises as read_manifest."""
    return _read_manifest(folder, Summary)


def _read_manifest(folder: Path, model: type[_Manifest]) -> _Manifest:
    path = folder / "manifest.json"
    try:
        return model.model_validate_json(unseal(path.read_bytes()))
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; the folder is not a committed stage and is not used") from None
    except ValueError as error:  # pydantic's ValidationError is one
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path}: broken manifest ({reason}); recompute the stage with force=true") from None
