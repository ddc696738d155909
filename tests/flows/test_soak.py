"""Kills, and nothing is lost: slices of `make soak`.

Each is a process of its own: it adopts orphans, which would be taken from other tests here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reliability.results import Result, read_results
from benchmarks.reliability.victims import MODEL_KINDS
from schemas.load import PROJECT_ROOT


def soak(folder: Path, kills: int, *options: str) -> Result:
    """The result of a few kills in a run over a stand-in for vLLM."""
    results = folder / "results"
    few = [
        "--seed",
        "2",
        "--at-once",
        ".5",
        "--algorithm",
        "rft",
        "--kills",
        str(kills),
    ]  # within one iteration
    command = [sys.executable, "-m", "benchmarks.reliability.soak", "run", "served", *few, *options]
    done = subprocess.run(
        [*command, "--work", str(folder), "--results", str(results)],
        cwd=PROJECT_ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(results)
    assert result.whole and result.tables >= 8 and len(result.kills) == kills
    return result


@pytest.mark.slow
def test_six_kills_of_stages_model_servers_and_their_supervisors_lose_nothing(tmp_path: Path) -> None:
    kills = soak(tmp_path, 6, "--in-process").kills
    assert {kill.victim for kill in kills} == {"stage", *MODEL_KINDS}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_kill_of_each_process_that_only_a_stack_has_loses_nothing(tmp_path: Path) -> None:
    kinds = ("worker", "server", "supervisor")
    kills = soak(tmp_path, len(kinds), *(option for kind in kinds for option in ("--victims", kind))).kills
    assert {kill.victim for kill in kills} == set(kinds)
