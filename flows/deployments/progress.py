"""How far a running stage has come: a small file that the stage replaces, and the terminal and `nlac status` read."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from flows.stack.environment import stack_dir
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
        """The file's content; None if it was not written after `since` (seconds since the epoch)."""
        path = cls.path(root, run, stage)
        if not path.exists() or path.stat().st_mtime < since:
            return None
        return _FILE.validate_json(path.read_bytes())

    def write(self, root: Path, run: str) -> None:
        """Replace the file."""
        replace_text(self.path(root, run, self.state.stage), _FILE.dump_json(self).decode())


_FILE = TypeAdapter(ProgressFile)
