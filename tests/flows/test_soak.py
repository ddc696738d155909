"""Kills, and nothing is lost: slices of `make soak`.

Each is a process of its own: it adopts orphans, which would be taken from other tests here.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.reliability.results import read_results
from benchmarks.reliability.victims import MODEL_KINDS
from schemas.load import PROJECT_ROOT


def kills_of_each(folder: Path, kinds: Sequence[str], *options: str) -> None:
    """A kill of each kind, within one iteration of a run over a stand-in for vLLM."""
    results = folder / "results"
    few = ["--seed", "2", "--at-once", ".5", "--algorithm", "rft", "--kills", str(len(kinds))]
    chosen = [word for kind in kinds for word in ("--victims", kind)]
    command = [sys.executable, "-m", "benchmarks.reliability.soak", "run", "served", *few, *chosen, *options]
    done = subprocess.run(
        [*command, "--work", str(folder), "--results", str(results)],
        cwd=PROJECT_ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(results)
    assert result.whole and result.tables >= 8
    assert sorted(kill.victim for kill in result.kills) == sorted(kinds)


@pytest.mark.slow
def test_a_kill_of_a_stage_of_a_model_server_and_of_its_supervisor_loses_nothing(tmp_path: Path) -> None:
    kills_of_each(tmp_path, ("stage", *MODEL_KINDS), "--in-process")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_kill_of_a_worker_and_of_the_stack_s_supervisor_loses_nothing(tmp_path: Path) -> None:
    kills_of_each(tmp_path, ("worker", "supervisor"))
