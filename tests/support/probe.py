"""A stand-in for the probe of `tasks.engines.dtype`, whose result depends on the machine and takes seconds."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.engines.dtype import Choice


@contextmanager
def stand_in_probe(folder: Path, choice: Choice) -> Iterator[None]:
    """The process that would measure says this choice."""
    program = folder / "probe.sh"
    program.write_text(f"#!/bin/sh\necho {shlex.quote(choice.model_dump_json())}\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        yield
