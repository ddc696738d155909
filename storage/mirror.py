"""A bucket that holds committed data, and the folder of this machine that mirrors it.

    <run>/iterations/00003/current.json, config.yaml     as in a data root of files
    <run>/<stage>/iteration=00003/<fingerprint>/
        manifest.json                                    put last, if there is none: it commits the folder
        <16 hex digits of its sha256>/<table>.parquet    each file; two writers never touch each other's
        stage.log
    <run>/.shards/<stage>-00003-<fingerprint>/0003-of-0008/  likewise, a shard of an unfinished stage
    .nlac                                                shows that the server honours conditional puts

The mirror holds copies of these, without the folders of digits. A file's copy counts while the mirror's manifest is the
bucket's. Journals, checkpoints, logs, locks and what is being written are the mirror's own.
"""

import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from schemas.load import ConfigError
from schemas.manifest import MANIFEST, FileEntry
from storage.committed import StoreError, Taken
from storage.copies import Copies
from storage.objects import Found, Objects
from storage.places import Change, Examined, Unlisted, examine_file, names_in

PARALLEL = 16  # requests at a time, of files of one folder or of many small files
ROUNDS = 100  # of reading and replacing a small file; each one lost was another writer's change
ABANDONED = timedelta(days=1)
"""Age of an upload that nobody finishes any more."""
PROBE = ".nlac"


class Mirror:
    """A place of committed data; see `storage.places.Place`.

    Args:
        root: the mirror.
        objects: the bucket.
    """

    def __init__(self, root: Path, objects: Objects) -> None:
        self._root, self._objects, self._copies = root, objects, Copies(root)
        self._manifests: dict[Path, bytes] = {}  # a folder that is committed does not change

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path != self._root else ""

    def _file_key(self, folder: Path, entry: FileEntry) -> str:
        return f"{self._key(folder)}/{entry.sha256[:16]}/{entry.path}"

    def read(self, path: Path) -> bytes | None:
        if path in self._manifests:
            return self._manifests[path]
        found = self._objects.get(self._key(path))
        if found is not None and path.name == MANIFEST:
            self._keep(path, found)
        return found.content if found else None

    def _keep(self, path: Path, found: Found) -> None:
        """Keep a small file's copy. Another manifest in a folder's place is of one that was removed; so are the copies
        beside it."""
        if path.name == MANIFEST:
            if path.exists() and path.read_bytes() != found.content:
                shutil.rmtree(path.parent, ignore_errors=True)
            self._manifests[path] = found.content
        self._copies.keep(path, found.content, found.etag)

    def change(self, path: Path, change: Change, *, private: bool = False) -> None:
        self._require_conditions()
        for _ in range(ROUNDS):
            found = self._objects.get(self._key(path))
            after = change(found.content if found else None)
            if after is None or self._objects.put(
                self._key(path), after.encode(), replaces=found.etag if found else None
            ):
                return
        raise StoreError(f"{self.shown(path)}: changed by others all the time; run the command again")

    def _require_conditions(self) -> None:
        """Refuse a server that ignores the conditions of puts: two writers would overwrite each other. Asked once a
        mirror."""
        mark = self._root / ".honours-conditions"
        if mark.exists():
            return
        if all(self._objects.put(PROBE, uuid.uuid4().bytes, replaces=None) for _ in range(2)):
            raise ConfigError(
                f"data root {self._objects.url}: its server ignores If-None-Match, so two writers would overwrite each "
                "other; choose a server with conditional puts"
            )
        mark.touch()

    def refresh(self, path: Path) -> None:
        found = self._objects.get(self._key(path))
        if found is None:
            self._manifests.pop(path, None)
            path.unlink(missing_ok=True)
        else:
            self._keep(path, found)

    def names(self, folder: Path) -> list[str]:
        return self._objects.names(self._key(folder))

    def attempts(self, home: Path) -> list[str]:
        keys = (Path(one.key) for one in self._objects.listing(self._key(home)))
        return sorted(key.parent.name for key in keys if key.name == MANIFEST)

    def publish(self, staged: Path, final: Path, entries: Sequence[FileEntry]) -> None:
        self._require_conditions()
        uploads = [(self._file_key(final, entry), staged / entry.path) for entry in entries]
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda upload: self._objects.upload(*upload), uploads))
        content = (staged / MANIFEST).read_bytes()
        if not self._objects.put(self._key(final / MANIFEST), content, replaces=None):
            raise Taken(
                f"{self.shown(final)}: another process committed it; a committed folder is never overwritten"
            )
        if (log := staged / "stage.log").exists():  # the winner's, and for people alone
            self._objects.upload(self._key(final / log.name), log)
        shutil.rmtree(final, ignore_errors=True)  # copies of a folder that was removed
        with suppress(OSError):  # a reader has brought copies by now; the others come when they are needed
            staged.rename(final)
        self._keep(final / MANIFEST, Found(content, None))

    def fetch(self, folder: Path, entries: Sequence[FileEntry]) -> None:
        missing = [e for e in entries if examine_file(folder / e.path, e, content=False)[1] != e.bytes]
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda entry: self._bring(folder, entry), missing))

    def _bring(self, folder: Path, entry: FileEntry) -> Examined:
        """Bring a file's copy here if it is as it was committed, and measure it in any case."""
        pieces = self._objects.stream(self._file_key(folder, entry))
        return (
            (entry, *self._copies.bring(folder / entry.path, pieces, entry.sha256))
            if pieces
            else (entry, None, None)
        )

    def examine(
        self, folder: Path, entries: Sequence[FileEntry], *, content: bool, stored: bool
    ) -> Iterable[Examined]:
        if not content:
            sizes = {one.key: one.bytes for one in self._objects.listing(self._key(folder))}
            return [(entry, sizes.get(self._file_key(folder, entry)), None) for entry in entries]
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(lambda e: (self._stored if stored else self._copy)(folder, e), entries))

    def _stored(self, folder: Path, entry: FileEntry) -> Examined:
        found = self._objects.digest(self._file_key(folder, entry))
        return (entry, *found) if found else (entry, None, None)

    def _copy(self, folder: Path, entry: FileEntry) -> Examined:
        here = examine_file(folder / entry.path, entry, content=True)
        return here if here[2] == entry.sha256 else self._bring(folder, entry)

    def unlisted(self, committed: Mapping[Path, Sequence[FileEntry]]) -> Iterator[Unlisted]:
        own = {f"{self._key(folder)}/{name}" for folder in committed for name in (MANIFEST, "stage.log")}
        own |= {self._file_key(folder, entry) for folder, entries in committed.items() for entry in entries}
        for one in self._objects.listing():
            # What a killed shard uploaded is its next attempt's, and goes with its stage's shards.
            if "/iteration=" in one.key and one.key not in own:
                old = datetime.now(UTC) - one.modified > ABANDONED
                yield Unlisted(self._root / one.key, self.shown(self._root / one.key), one.bytes, old)

    def remove(self, path: Path, aside: Path) -> None:
        keys = [one.key for one in self._objects.listing(self._key(path))] or [self._key(path)]
        # Without its manifest a folder is none. Without its iterations a run is none; until then it is deleted again.
        self._objects.delete([key for key in keys if key.endswith(f"/{MANIFEST}")])
        self._objects.delete([key for key in keys if "/iterations/" not in key])
        self._objects.delete([key for key in keys if "/iterations/" in key])
        self._manifests = {
            known: made for known, made in self._manifests.items() if path not in known.parents
        }
        if path.exists():
            path.rename(aside)

    def pull(self) -> None:
        # What is made here after the listing began may be missing in it.
        runs = [self._root / name for name in names_in(self._root)]
        shards = [path for run in runs for path in run.glob(".shards/*/*")]
        folders = [*shards, *(path for run in runs for path in run.glob("*/iteration=*/*"))]
        small = [path for run in runs for path in run.glob("iterations/*/*")]
        listed = {self._root / one.key: one for one in self._objects.listing()}
        wanted = [p for p in listed if p.name == MANIFEST or p.parent.parent.name == "iterations"]
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(self._pull, wanted, (listed[path].etag for path in wanted)))
        for folder in folders:
            if folder / MANIFEST not in listed:
                shutil.rmtree(folder, ignore_errors=True)
        for path in small:
            if path not in listed:
                path.unlink(missing_ok=True)
        for folder in {path.parent for path in (*small, *shards) if not path.exists()}:
            with suppress(OSError):  # it is not empty
                folder.rmdir()

    def _pull(self, path: Path, etag: str | None) -> None:
        """Bring a small file's copy up to date, if it is not of that version."""
        content = self._copies.of_version(path, etag)
        if content is None:
            self._manifests.pop(path, None)
            self.refresh(path)
        elif path.name == MANIFEST:
            self._manifests[path] = content

    def shown(self, path: Path, entry: FileEntry | None = None) -> str:
        return f"{self._objects.url}/{self._file_key(path, entry) if entry else self._key(path)}"
