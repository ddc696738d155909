"""How far a running stage has come: a small file that the stage replaces, and the terminal and `nlac status` read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from flows.stack.environment import stack_dir
from schemas.manifest import RoleCost
from storage.files import replace_text
from tasks.runtime.progress import ProgressState


@dataclass(frozen=True)
class ProgressFile:
    """What the progress file of a stage holds."""

    iteration: int
    state: ProgressState

    @staticmethod
    def path(root: Path, run: str, stage: str) -> Path:
        """The file of a run's stage."""
        return stack_dir(root) / "progress" / f"{run}-{stage}.json"

    @classmethod
    def read(cls, root: Path, run: str, stage: str, since: float) -> "ProgressFile | None":
        """The file's content; None if it was not written after `since` (seconds since the epoch). Where the files of
        its shards are newer, they together."""
        paths = [path for path in cls.paths(root, run, stage) if path.stat().st_mtime >= since]
        if not paths:
            return None
        newest = max(paths, key=lambda path: path.stat().st_mtime)
        found = _FILE.validate_json(newest.read_bytes())
        if newest == cls.path(root, run, stage):
            return found
        split = newest.name.rpartition("-of-")[2]  # of the shards of another count nobody is working on one
        parts = [
            _FILE.validate_json(path.read_bytes()) for path in paths if path.name.endswith(f"-of-{split}")
        ]
        states = [part.state for part in parts if part.iteration == found.iteration]
        return cls(found.iteration, together(stage, states))

    @classmethod
    def paths(cls, root: Path, run: str, stage: str) -> list[Path]:
        """The files of a run's stage and of its shards that are there."""
        own = cls.path(root, run, stage)
        return [*own.parent.glob(own.name), *own.parent.glob(f"{own.stem}.????-of-????.json")]

    def write(self, root: Path, run: str) -> None:
        """Replace the file."""
        replace_text(self.path(root, run, self.state.stage), _FILE.dump_json(self).decode())


def together(stage: str, states: Sequence[ProgressState]) -> ProgressState:
    """How far a stage has come whose shards have come so far."""
    costs = [state.roles for state in states]
    return ProgressState(
        stage,
        sum(state.done for state in states),
        sum(state.total for state in states),
        states[0].unit,
        max(state.seconds for state in states),
        roles={role: sum((c[role] for c in costs if role in c), RoleCost()) for c in costs for role in c},
        faults=sum((Counter(state.faults) for state in states), Counter()),
    )


_FILE = TypeAdapter(ProgressFile)
