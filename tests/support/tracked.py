"""The files of this project as git knows them: committed, or new and not ignored."""

import shutil
import subprocess
from pathlib import Path

import pytest

from schemas.load import PROJECT_ROOT


def tracked_files() -> list[Path]:
    """Paths relative to the project's root; skips the test where there is no git checkout."""
    if shutil.which("git") is None or not (PROJECT_ROOT / ".git").exists():
        pytest.skip("needs git and a checkout, which say what belongs to the project")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT_ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [path for path in map(Path, listed.split("\0")) if (PROJECT_ROOT / path).is_file()]
