"""What an iteration leaves on disk while it works: committed stages, progress files, logs, journals."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flows.deployments.progress import ProgressFile
from schemas.manifest import Manifest, StageKey
from storage.committed import StoreError
from storage.store import Store
from tasks.runtime.progress import ProgressState

FAILED_ONCE = "ERROR the stage failed"
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (.*)")


@dataclass(frozen=True)
class LeftBehind:
    """Reads what one iteration has left so far; `now` is in seconds since the epoch."""

    store: Store
    run: str
    iteration: int
    now: float

    def manifest(self, stage: str, iteration: int | None = None) -> Manifest | None:
        """The manifest of a committed stage, of another iteration where one is named; None where it is not committed,
        or can't be read."""
        try:
            number = self.iteration if iteration is None else iteration
            committed = self.store.committed(self.run, stage, number)
        except StoreError:
            return None  # `nlac verify` names it
        return committed.manifest if committed else None

    def seconds_before(self, stage: str) -> float | None:
        """What a stage took in the last earlier iteration that has it."""
        earlier = (self.manifest(stage, number) for number in range(self.iteration - 1, -1, -1))
        return next((manifest.seconds for manifest in earlier if manifest is not None), None)

    def progress(self, stage: str) -> ProgressState | None:
        """How far a stage has come: as it said last, and what time has passed since."""
        found = ProgressFile.read(self.store.root, self.run, stage, 0.0)
        if found is None or found.iteration != self.iteration:
            return None
        files = ProgressFile.paths(self.store.root, self.run, stage)
        waited = self.now - max(path.stat().st_mtime for path in files)
        return replace(found.state, seconds=found.state.seconds + max(waited, 0.0))

    def log(self, stage: str) -> Path:
        """Where an unfinished stage writes its log."""
        return self.store.stage_log(StageKey(stage=stage, run=self.run, iteration=self.iteration))

    def failures(self, stage: str) -> list[tuple[str, str]]:
        """Kind and reason of each failed attempt at an unfinished stage, from its log."""
        logs = [path for path in self._logs(stage) if path.exists()]
        said = [path.read_text(encoding="utf-8", errors="replace").split(FAILED_ONCE)[1:] for path in logs]
        parts = [part for of_one in said for part in of_one]
        found = []
        for part in parts:
            raised = [match for line in part.splitlines() if (match := _RAISED.fullmatch(line))]
            found.append((raised[-1][1], raised[-1][2]) if raised else ("unknown", part.strip()[-200:]))
        return found

    def still(self, stages: Sequence[str]) -> float | None:
        """Seconds since the iteration left any trace of work."""
        moved = [path.stat().st_mtime for path in self._traces(stages) if path.exists()]
        return max(0.0, self.now - max(moved)) if moved else None

    def _traces(self, stages: Sequence[str]) -> Iterator[Path]:
        yield self.store.current_path(self.run, self.iteration)
        for stage in stages:
            yield from ProgressFile.paths(self.store.root, self.run, stage)
            yield from self._logs(stage)
        yield from self.store.run_dir(self.run).glob(".requests/*.journal")

    def _logs(self, stage: str) -> list[Path]:
        """The logs of an unfinished stage and of its shards."""
        own = self.log(stage)
        return [own, *own.parent.glob(f"{stage}.????-of-????-{self.iteration:05d}.log")]
