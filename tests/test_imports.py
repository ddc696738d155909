"""Imports point downwards: the contracts of pyproject.toml, which docs/design.md states."""

import subprocess
import sys
from pathlib import Path

from schemas.load import PROJECT_ROOT

LINT = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]


def test_imports_keep_their_contracts() -> None:
    done = subprocess.run(LINT, cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 5 kept, 0 broken." in done.stdout
