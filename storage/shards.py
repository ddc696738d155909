"""Shards of unfinished stages: each is committed, found and reused by itself, until the stage is committed.

    data/<run>/.shards/<stage>-<iteration>-<fingerprint>/0003-of-0008/
        manifest.json      digests of the files, items, costs
        items.parquet      an item a row: its number, and how many rows of each table are its own
        <table>.parquet    rows, item after item
        stage.log

They lie where committed stages lie, in a folder or in a bucket, and are committed as a stage is. A shard that is
removed may be computed again, also by another host; so its manifest is always read anew.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from schemas.manifest import MANIFEST, StageKey
from schemas.shards import Shard, ShardManifest
from storage.committed import Missing, StoreError, Taken, Unreachable
from storage.files import make_folder
from storage.sealed import seal, unseal
from storage.store import Store

FOLDER = ".shards"


@dataclass(frozen=True)
class CommittedShard:
    """A committed shard.

    Attributes:
        path: where its files are read, once `faults` has looked at their content.
        manifest: what it holds.
        store: where it is stored.
    """

    path: Path
    manifest: ShardManifest
    store: Store = field(compare=False, repr=False)

    def faults(self, *, stored: bool = False) -> Iterator[StoreError]:
        """What is missing or changed, by name; with `stored` of what is stored, also where a copy is read."""
        place = self.store.place
        for entry, size, sha256 in place.examine(self.path, self.manifest.files, content=True, stored=stored):
            shown = place.shown(self.path, entry)
            if size is None:
                yield Missing(f"{shown}: named in the shard's manifest and missing")
            elif sha256 != entry.sha256:
                yield StoreError(f"{shown}: its size or sha256 is not that of the shard's manifest")

    def log(self) -> bytes:
        """What it said while it was computed."""
        return self.store.place.read(self.path / "stage.log") or b""

    def discard(self) -> None:
        """Remove it, because it is to be computed again; its requests stay known."""
        _remove(self.store, self.manifest.key.run, self.path)


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
        there = shard.name in self._store.place.attempts(self.home)
        return read_shard(self._store, self.home / shard.name) if there else None

    def missing(self) -> list[Shard]:
        """Shards that are not committed, or whose manifest is broken.

        Raises:
            Unreachable: the bucket's server does not answer.
        """
        known = {made.manifest.shard for made in _whole(self._store, self.home, len(self.all))}
        return [shard for shard in self.all if shard not in known]

    def commit(self, staged: Path, manifest: ShardManifest) -> CommittedShard:
        """Make a staged folder visible as a whole. One that is there already stays: shards with equal inputs are
        equal."""
        (staged / MANIFEST).write_text(seal(manifest), encoding="utf-8")
        make_folder(self.home)
        path = self.home / manifest.shard.name
        try:
            self._store.place.publish(staged, path, manifest.files)
        except Taken:
            return read_shard(self._store, path)
        return CommittedShard(path, manifest, self._store)

    def discard(self, shard: Shard) -> None:
        """Remove a damaged shard, because it is computed again; its requests stay known."""
        _remove(self._store, self.key.run, self.home / shard.name)

    def remove(self) -> None:
        """Remove all that the shards left, also those of another count: their stage is committed. Journals and logs of
        other hosts are not here; theirs `nlac gc` removes."""
        _remove(self._store, self.key.run, self.home)
        anyone = Shard(number=1, count=1)
        for kept in (self._store.requests_journal(anyone.of(self.key), self.folder),
                     self._store.stage_log(anyone.of(self.key))):  # fmt: skip
            for path in kept.parent.glob(kept.name.replace(anyone.name, "????-of-????")):
                path.unlink(missing_ok=True)


def _remove(store: Store, run: str, path: Path) -> None:
    """Remove a shard, or the folder of all."""
    with store.staging(run) as aside, suppress(FileNotFoundError):  # another process was faster
        store.place.remove(path, aside / path.name)


def _whole(store: Store, home: Path, count: int) -> Iterator[CommittedShard]:
    """The committed ones of so many shards whose manifests are whole."""
    for name in store.place.attempts(home):
        if name.endswith(f"-of-{count:04d}"):
            try:
                yield read_shard(store, home / name)
            except Unreachable:
                raise
            except StoreError:  # `nlac verify` names it
                continue


def shard_homes(store: Store, run: str) -> list[Path]:
    """The folders of a run in which shards of one computation of a stage lie."""
    folder = store.run_dir(run) / FOLDER
    return [folder / name for name in store.place.names(folder)]


def committed_shards(store: Store, key: StageKey, count: int) -> list[CommittedShard]:
    """The committed ones of so many shards of a stage that is not committed yet, of its newest computation."""
    stage = f"{key.stage}-{key.iteration:05d}-"
    homes = (home for home in shard_homes(store, key.run) if home.name.startswith(stage))
    computations = [made for home in homes if (made := list(_whole(store, home, count)))]
    return max(computations, key=lambda made: max(one.manifest.started_at for one in made), default=[])


def read_shard(store: Store, folder: Path) -> CommittedShard:
    """A committed shard, by its folder.

    Raises:
        StoreError: its manifest is missing or broken; it is named.
    """
    path = folder / MANIFEST
    store.place.refresh(path)
    content, shown = store.place.read(path), store.place.shown(path)
    if content is None:
        raise Missing(f"{shown}: missing; the folder is no committed shard")
    try:
        return CommittedShard(folder, ShardManifest.model_validate_json(unseal(content)), store)
    except ValueError as error:  # pydantic's ValidationError is one
        reason = str(error).splitlines()[0]
        raise StoreError(f"{shown}: broken manifest ({reason})") from None
