"""Checking all committed files against their manifests, what nothing refers to, and rebuilding `current.json`."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from schemas.manifest import Current, CurrentEntry, Manifest, Summary
from storage.checked_lines import read_checked_lines
from storage.committed import Committed, Missing, StoreError
from storage.folders import Folder, folders, iterations_of
from storage.parquet.footers import TableError
from storage.places import names_in
from storage.shards import read_shard, shard_homes
from storage.store import Store

# A fingerprint input: `[run/]stage@iteration`, and the table or file of it.
_INPUT = re.compile(r"(?:(?P<run>[^/@]+)/)?(?P<part>[a-z-]+@\d{5})(?P<name>[./].+)")


_SHARD = re.compile(r"\.\d{4}-of-\d{4}")  # in the name of a shard's journal


@dataclass(frozen=True)
class Fault:
    """Something that is not as it was committed.

    Attributes:
        message: the file, what is wrong with it, and the remedy.
        missing: it is gone, or a part of it is; otherwise its content has changed.
    """

    message: str
    missing: bool


@dataclass
class Survey:
    """What a store holds.

    Attributes:
        runs, iterations, stages, superseded, files, bytes: how much was committed; superseded folders count apart.
        unreferenced: what no manifest and no `current.json` refers to, with the reason.
    """

    runs: int = 0
    iterations: int = 0
    stages: int = 0
    superseded: int = 0
    files: int = 0
    bytes: int = 0
    unreferenced: list[str] = field(default_factory=list)


def verify(store: Store) -> list[Fault]:
    """Check every committed file, superseded ones too, by sha256, that what manifests were made from is there, and
    the journals and shards of unfinished stages."""
    problems: list[str] = []
    found = list(folders(store, problems))
    faults = [Fault(problem, missing=True) for problem in problems]
    held = {name for folder in found for name, _ in _digests(folder.manifest)}
    lost: dict[str, str] = {}
    for folder in found:
        try:
            committed = store.at(folder.path)
            broken = list(committed.faults(content=True, stored=True))
            faults += [Fault(str(error), isinstance(error, Missing)) for error in broken]
            for table in () if broken else committed.manifest.tables:
                committed.scan(table)
        except (StoreError, TableError) as error:
            faults.append(Fault(str(error), missing=False))
            continue
        if folder.state != "superseded":
            lost |= {
                part: str(folder.path) for part, name, _ in _inputs(committed.manifest) if name not in held
            }
    faults += [
        Fault(f"{part}: gone, and {reader} was made from it; restore it from a copy", missing=True)
        for part, reader in lost.items()
    ]
    return [*faults, *_journal_faults(store, found), *_shard_faults(store)]


def _journal_faults(store: Store, found: list[Folder]) -> Iterator[Fault]:
    for path in sorted(store.root.glob("[!.]*/.requests/*.journal")):
        records, damaged, _ = read_checked_lines(path.read_bytes())
        if damaged and _SHARD.sub("", path.stem) not in _working_names(found, path.parents[1].name):
            yield Fault(
                f"{path}: {damaged} of {len(records) + damaged} lines damaged, or left half-written by a process that "
                "was killed; run the stage again: it asks their requests again, and nothing else is lost",
                missing=False,
            )


def _shard_faults(store: Store) -> Iterator[Fault]:
    homes = [home for run in store.place.names(store.root) for home in shard_homes(store, run)]
    for path in (home / name for home in homes for name in store.place.attempts(home)):
        try:
            broken = list(read_shard(store, path).faults(stored=True))
        except StoreError as error:
            broken = [error]
        for fault in broken:
            remedy = "run the stage again: it computes the shard from the requests that were answered"
            yield Fault(f"{fault}; {remedy}", isinstance(fault, Missing))


def survey(store: Store) -> Survey:
    """Count what is committed, and name what nothing refers to. Reads no contents."""
    found = list(folders(store, []))
    made = Survey(
        runs=len({folder.manifest.run for folder in found}),
        iterations=len({(folder.manifest.run, folder.manifest.iteration) for folder in found}),
        stages=sum(folder.state != "superseded" for folder in found),
        superseded=sum(folder.state == "superseded" for folder in found),
        files=sum(len(folder.manifest.files) for folder in found),
        bytes=sum(entry.bytes for folder in found for entry in folder.manifest.files),
    )
    made.unreferenced += _unreferenced(store, found)
    return made


def _unreferenced(store: Store, found: list[Folder]) -> Iterator[str]:
    for path in sorted(store.root.glob("[!.]*")):
        if not path.is_dir() or not (iterations_of(store, path.name) or (path / ".lock").exists()):
            yield f"{path}: is no run"
    committed = {folder.path: folder.manifest.files for folder in found}
    yield from (f"{one.shown}: no manifest lists it" for one in store.place.unlisted(committed))
    for run in names_in(store.root):
        working = _working_names(found, run)
        home = store.run_dir(run)
        for path in sorted(
            [*home.glob(".requests/*"), *home.glob(".checkpoints/*"), *shard_homes(store, run)]
        ):
            if _SHARD.sub("", path.stem) in working:
                yield f"{path}: left over; its stage is committed"
    for folder in (folder for folder in found if folder.state == "superseded"):
        m = folder.manifest
        try:
            named = store.current(m.run, m.iteration).stages
        except StoreError:
            continue
        if m.stage not in named:
            yield f"{folder.path}: committed, and not current; the next run of the stage adopts it, if it still fits"


def _working_names(found: list[Folder], run: str) -> set[str]:
    """What journals and checkpoints of a run's committed folders were called while those were computed."""
    manifests = (folder.manifest for folder in found if folder.manifest.run == run)
    return {f"{m.stage}-{m.iteration:05d}-{m.folder}" for m in manifests}


def repair(store: Store) -> list[str]:
    """Rebuild every `current.json` that is gone or broken from the manifests: the newest whole folder of each stage,
    which is stale where its inputs are not those named.

    An iteration counts as finished where a later one was computed. Runs of the last one go on with it.

    Returns:
        One line per file rebuilt.

    Raises:
        RunLocked: another process writes the run.
    """
    said: list[str] = []
    snapshot = store.snapshot()
    for run in names_in(store.root):
        lost = [number for number in iterations_of(snapshot, run) if _is_lost(snapshot, run, number)]
        if lost:
            with store.lock(run, "nlac verify --repair"):
                said += _rebuild(store, run, lost)
    return said


def _is_lost(store: Store, run: str, iteration: int) -> bool:
    try:
        store.current(run, iteration)
    except StoreError:
        return True
    return not store.current_path(run, iteration).exists()


def _rebuild(store: Store, run: str, lost: list[int]) -> Iterator[str]:
    whole: dict[int, list[Committed]] = defaultdict(list)
    for folder in folders(store, [], run):
        with suppress(StoreError):
            committed = store.at(folder.path)
            if not any(committed.faults(content=True, stored=True)):
                whole[folder.manifest.iteration].append(committed)
    # An import has no models, and may lie ready for an iteration to come.
    computed = [
        number for number, made in whole.items() if any(c.manifest.fingerprint_inputs.models for c in made)
    ]
    for number in lost:
        newest = {c.manifest.stage: c for c in sorted(whole[number], key=_age)}
        names = {name: digest for c in newest.values() for name, digest in _digests(c.manifest)}
        stages = {
            stage: CurrentEntry(
                fingerprint=c.manifest.fingerprint,
                folder=c.manifest.folder,
                stale=any(names.get(name, digest) != digest for _, name, digest in _inputs(c.manifest)),
            )
            for stage, c in newest.items()
        }
        path = store.current_path(run, number)
        if stages or store.place.read(path) is not None:
            finished = number < max(computed, default=-1)
            rebuilt = Current(stages=stages, state="finished" if finished else "running")
            store.set_current(run, number, rebuilt)
            shown, of = store.place.shown(path), ", ".join(stages) or "no stage"
            yield f"{shown}: rebuilt from the manifests of {of}, {rebuilt.state}"


def _age(committed: Committed) -> tuple[str, int]:
    return committed.manifest.started_at, committed.manifest.attempt


def _digests(manifest: Summary) -> Iterator[tuple[str, str]]:
    """(name, digest) of all that a folder offers as inputs."""
    part = f"{manifest.run}/{manifest.stage}@{manifest.iteration:05d}"
    yield from ((f"{part}.{name}", entry.digest) for name, entry in manifest.tables.items())
    yield from ((f"{part}/{entry.path}", entry.sha256) for entry in manifest.files)


def _inputs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """(folder, name, digest) of all that a stage read."""
    for text, digest in manifest.fingerprint_inputs.inputs.items():
        if match := _INPUT.fullmatch(text):
            part = f"{match['run'] or manifest.run}/{match['part']}"
            yield part, part + match["name"], digest
