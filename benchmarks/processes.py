"""A benchmark's parts in processes of their own, so that memory and imports of one are not another's."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from schemas.load import PROJECT_ROOT


def run_module(module: str, *arguments: object, log: Path, environment: Mapping[str, str]) -> None:
    """Run a module to its end; what it prints goes to a file.

    Args:
        module: its import path.
        arguments: for the command line.
        log: the file.
        environment: variables beside this process's own.

    Raises:
        SystemExit: it failed; the end of its output is shown.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with log.open("w") as said:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            cwd=PROJECT_ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        print(log.read_text()[-4000:], file=sys.stderr)
        raise SystemExit(
            f"{' '.join(command[2:])} ended with {done.returncode}; the end of its output is above"
        )
