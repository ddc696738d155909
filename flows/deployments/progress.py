"""How far a running stage has come: a small file that the stage replaces and the terminal reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.stack.environment import stack_dir
from storage.files import replace_text
from tasks.runtime.progress import ProgressState


def progress_line(state: ProgressState) -> str:
    """One line for people: items done, rate, time left."""
    counted = f"{state.done}/{state.total} {state.unit}"
    left = state.remaining_seconds
    if left is None or state.seconds < 1.0:  # too early for a rate
        return counted
    return f"{counted}, {state.rate:.2f}/s" + (f", {left:.0f} s left" if state.done < state.total else "")


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
        """The file's content; None if it was not written after `since` (seconds since the epoch)."""
        path = cls.path(root, run, stage)
        if not path.exists() or path.stat().st_mtime < since:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["iteration"], ProgressState(**content["state"]))

    def write(self, root: Path, run: str) -> None:
        """Replace the file."""
        replace_text(self.path(root, run, self.state.stage), json.dumps(asdict(self)))
