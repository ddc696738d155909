"""Shards of unfinished stages: each is committed, found and reused by itself, until the stage is committed.

    data/<run>/.shards/<stage>-<iteration>-<fingerprint>/0003-of-0008/
        manifest.json      digests of the files, items, costs
        items.parquet      an item a row: its number, and how many rows of each table are its own
        <table>.parquet    rows, item after item
        stage.log

A shard is written aside and renamed into place, as a stage is.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.manifest import StageKey
from schemas.shards import Shard, ShardManifest
from storage.committed import Missing, StoreError
from storage.files import fsync, fsync_tree, make_folder, sha256_file
from storage.sealed import seal, unseal
from storage.store import Store

FOLDER = ".shards"


@dataclass(frozen=True)
class CommittedShard:
    """A committed shard."""

    path: Path
    manifest: ShardManifest

    def faults(self) -> Iterator[StoreError]:
        """What is missing or changed, by name."""
        for entry in self.manifest.files:
            path = self.path / entry.path
            if not path.is_file():
                yield Missing(f"{path}: named in the shard's manifest and missing")
            elif path.stat().st_size != entry.bytes or sha256_file(path) != entry.sha256:
                yield StoreError(f"{path}: its size or sha256 is not that of the shard's manifest")

    def discard(self) -> None:
        """Remove it, because it is to be computed again; its requests stay known."""
        shutil.rmtree(self.path, ignore_errors=True)


class Shards:
    """The shards of one computation of a stage.

    Args:
        store: the artifact store.
        key: the stage.
        folder: name of the folder that it will commit, as the requests' journal is named by.
        count: how many there are.
    """

    def __init__(self, store: Store, key: StageKey, folder: str, count: int) -> None:
        self._store, self.key, self.folder, self.all = store, key, folder, Shard.all(count)
        self.home = store.run_dir(key.run) / FOLDER / f"{key.stage}-{key.iteration:05d}-{folder}"

    def find(self, shard: Shard) -> CommittedShard | None:
        """A shard, if it is committed; its files are not read.

        Raises:
            StoreError: its manifest is missing or broken.
        """
        path = self.home / shard.name
        return CommittedShard(path, read_shard_manifest(path)) if path.is_dir() else None

    def missing(self) -> list[Shard]:
        """Shards that are not committed, or whose manifest is broken."""
        found = []
        for shard in self.all:
            try:
                known = self.find(shard)
            except StoreError:
                known = None
            found += [] if known else [shard]
        return found

    def commit(self, staged: Path, manifest: ShardManifest) -> CommittedShard:
        """Make a staged folder visible as a whole. One that is there already stays: shards with equal inputs are
        equal."""
        (staged / "manifest.json").write_text(seal(manifest), encoding="utf-8")
        fsync_tree(staged)
        make_folder(self.home)
        path = self.home / manifest.shard.name
        try:
            staged.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return CommittedShard(path, read_shard_manifest(path))
        fsync(self.home)
        return CommittedShard(path, manifest)

    def discard(self, shard: Shard) -> None:
        """Remove a damaged shard, because it is computed again; its requests stay known."""
        shutil.rmtree(self.home / shard.name, ignore_errors=True)

    def remove(self) -> None:
        """Remove all that the shards left, also those of another count: their stage is committed."""
        shutil.rmtree(self.home, ignore_errors=True)
        anyone = Shard(number=1, count=1)
        for kept in (self._store.requests_journal(anyone.of(self.key), self.folder),
                     self._store.stage_log(anyone.of(self.key))):  # fmt: skip
            for path in kept.parent.glob(kept.name.replace(anyone.name, "????-of-????")):
                path.unlink(missing_ok=True)


def committed_shards(store: Store, key: StageKey, count: int) -> list[CommittedShard]:
    """The committed ones of so many shards of a stage that is not committed yet, of its newest computation."""
    homes = (store.run_dir(key.run) / FOLDER).glob(f"{key.stage}-{key.iteration:05d}-*")
    newest = max(homes, key=lambda home: home.stat().st_mtime, default=None)
    found = []
    for path in sorted(newest.glob(f"????-of-{count:04d}")) if newest else ():
        with suppress(StoreError):  # `nlac verify` names it
            found.append(CommittedShard(path, read_shard_manifest(path)))
    return found


def read_shard_manifest(folder: Path) -> ShardManifest:
    """The manifest of a shard's folder.

    Raises:
        StoreError: it is missing or broken; the folder is named.
    """
    path = folder / "manifest.json"
    try:
        return ShardManifest.model_validate_json(unseal(path.read_bytes()))
    except FileNotFoundError:
        raise Missing(f"{path}: missing; the folder is no committed shard") from None
    except ValueError as error:  # pydantic's ValidationError is one
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path}: broken manifest ({reason})") from None
