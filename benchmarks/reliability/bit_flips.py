"""Damaged files: bits flipped and ends cut off, in tables, manifests, current.json, adapters and journals.

python -m benchmarks.reliability.bit_flips [--number 250] [--seed 0]

Each damage is made in a run of two iterations and a third one that was interrupted. Then `nlac verify` must name the
file, and a stage that reads it must refuse it by name. A stage that was interrupted goes on with what is whole of its
journal: it must say how many lines are damaged, and commit what it would have committed without the damage.
"""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.reliability.findings import FOLDER, write_result
from benchmarks.reliability.small_run import interrupt, run_config, run_iterations
from schemas.config import Config
from storage.store import Store, StoreError
from storage.verify import verify
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.registry import stages_of
from tasks.pipeline.runner import run_stage
from tasks.runtime.stage import StageFailed

KINDS = ("table", "manifest", "current.json", "adapter", "journal")
DAMAGES = ("flipped bit", "cut end")
Stage = tuple[str, int]


@dataclass
class Found:
    """What became of the damages, by kind and damage.

    Attributes:
        made, named, refused: how many; named by verify; refused by a stage (or gone on from, of a journal).
        unread: of files that no stage of the run reads.
        line_ends: cuts of a journal at the end of a line, which leave it whole: it holds fewer answers.
        missed: what was not found, in words.
    """

    made: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    line_ends: int = 0
    missed: list[str] = field(default_factory=list)


class DamagedRun:
    """A run whose files are damaged, one at a time.

    Args:
        folder: where it is made.
        iterations: finished ones.
    """

    def __init__(self, folder: Path, iterations: int = 2) -> None:
        self.config: Config = run_config(rollout={"episodes": 4, "max_steps": 6})
        self.store, self.kept, self.last = Store(folder / "data"), folder / "kept", iterations
        run_iterations(self.store, self.config, iterations)
        self.journal = interrupt(self.store, self.config, "rollout", iterations, after=6)
        shutil.copytree(self.store.root, self.kept)
        self.undisturbed = self._resumed()
        self._restore()

    def files(self, kind: str) -> list[Path]:
        """The run's files of a kind."""
        run = self.store.run_dir(self.config.run)
        patterns = {
            "table": "*/iteration=*/*/*.parquet",
            "manifest": "*/iteration=*/*/manifest.json",
            "current.json": f"iterations/*[0-{self.last - 1}]/current.json",
            "adapter": "*/iteration=*/*/*/*",
            "journal": ".requests/*.journal",
        }
        return sorted(path for path in run.glob(patterns[kind]) if path.is_file())

    @cached_property
    def readers(self) -> dict[Path, Stage]:
        """Table files, adapter folders and stage folders -> a stage that reads them."""
        found: dict[Path, Stage] = {}
        for reader in self._stages():
            try:
                inputs = resolve_inputs(self.store, self.config, *reader)
            except StageFailed:
                continue  # of the interrupted iteration
            for table, parts in inputs.tables.items():
                for part in parts:
                    found.setdefault(part.path / f"{table}.parquet", reader)
                    found.setdefault(part.path, reader)
            for adapter in inputs.adapters.values():
                if adapter:
                    found.setdefault(adapter.path, reader)
                    found.setdefault(adapter.path.parent, reader)
        return found

    def _stages(self) -> Iterator[Stage]:
        for iteration in range(self.last + 1):
            yield from ((stage, iteration) for stage in stages_of(self.config, iteration))

    def reader(self, kind: str, path: Path) -> Stage | None:
        """A stage that reads a file."""
        if kind == "current.json":
            return stages_of(self.config, 0)[1], int(path.parent.name)
        return self.readers.get(path if kind == "table" else path.parent)

    def refuses(self, reader: Stage, path: Path) -> bool:
        """Whether a stage refuses a damaged file by name."""
        try:
            asyncio.run(run_stage(self.store, self.config, *reader, force=True))
        except StoreError as error:
            return str(path) in str(error)
        self._restore()  # it has committed what it computed from the damaged file
        return False

    def goes_on(self) -> bool:
        """Whether the interrupted stage says that its journal is damaged, and ends as if it were not."""
        digests = self._resumed()
        (log,) = self.store.stage_dir(self.config.run, "rollout", self.last).glob("*/stage.log")
        said = "damaged lines of the journal" in log.read_text()
        self._restore()
        return said and digests == self.undisturbed

    def _resumed(self) -> dict[str, str]:
        made = asyncio.run(run_stage(self.store, self.config, "rollout", self.last)).committed
        return {name: entry.digest for name, entry in made.manifest.tables.items()}

    def _restore(self) -> None:
        shutil.rmtree(self.store.root)
        shutil.copytree(self.kept, self.store.root)


def damage(content: bytes, how: str, stream: Random) -> bytes:
    """A file's content with one bit flipped, or without a part of its end."""
    if how == "cut end":
        return content[: stream.randrange(len(content))]
    bit = stream.randrange(8 * len(content))
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def try_damages(run: DamagedRun, number: int, seed: int = 0) -> Found:
    """Damage so many files, one after the other; kinds and damages take turns."""
    stream, found = Random(seed), Found()
    for index in range(number):
        kind, how = KINDS[index % len(KINDS)], DAMAGES[index // len(KINDS) % len(DAMAGES)]
        path = stream.choice(run.files(kind))
        whole = path.read_bytes()
        damaged = damage(whole, how, stream)
        path.write_bytes(damaged)
        what = f"{kind}, {how}"
        found.made[what] += 1
        if kind == "journal" and damaged in (b"", *_line_ends(whole)):
            found.line_ends += 1
            path.write_bytes(whole)
            continue
        named = any(str(path) in fault.message for fault in verify(run.store))
        found.named[what] += named
        reader = run.reader(kind, path)
        refused = run.goes_on() if kind == "journal" else reader is not None and run.refuses(reader, path)
        found.refused[what] += refused
        found.unread[what] += kind != "journal" and reader is None
        if not named or not (refused or reader is None):
            found.missed.append(
                f"{what} of {path.relative_to(run.store.root)} at {len(damaged)}: named {named}"
            )
        path.write_bytes(whole)
    found.missed += [fault.message for fault in verify(run.store)]
    return found


def _line_ends(content: bytes) -> Iterator[bytes]:
    lines = content.splitlines(keepends=True)
    yield from (b"".join(lines[:count]) for count in range(len(lines)))


def main(
    number: Annotated[int, typer.Option(min=1)] = 250,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="folder of the result")] = FOLDER,
) -> None:
    """Damage files, print what was found, and write bit_flips.json."""
    with TemporaryDirectory(prefix="nlac-damaged-") as folder:
        found = try_damages(DamagedRun(Path(folder)), number, seed)
    rows: dict[str, Any] = {
        what: {
            "made": made,
            "named by nlac verify": found.named[what],
            "refused by a stage, or gone on from": found.refused[what],
            "read by no stage": found.unread[what],
        }
        for what, made in found.made.items()
    }
    content = {
        "number": number,
        "seed": seed,
        "journals cut at a line's end": found.line_ends,
        "by kind": rows,
    }
    path = write_result("bit_flips", {**content, "missed": found.missed}, out)
    for what, row in rows.items():
        print(f"{what}: {row}")
    print(f"{number} damages; written to {path}")
    if found.missed:
        sys.exit("\n".join(found.missed))


if __name__ == "__main__":
    typer.run(main)
