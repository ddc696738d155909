"""What the terminal shows of a running iteration: progress, and how to go on."""

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.display import Display
from flows.cli.iteration_process import why_failed
from flows.cli.summary import retry_hint
from flows.deployments.progress import ProgressFile
from flows.stack.record import Stack
from tasks.runtime.progress import ProgressState, progress_line


def state(done: int, total: int = 8, seconds: float = 4.0) -> ProgressState:
    return ProgressState("rollout", done, total, "episodes", seconds)


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (state(0), "0/8 episodes"),
        (state(2, seconds=0.5), "2/8 episodes"),  # too early for a rate
        (state(2), "2/8 episodes, 0.50/s, 12 s left"),
        (state(8), "8/8 episodes, 2.00/s"),
    ],
)
def test_progress_is_counted_and_the_time_left_is_said_once_there_is_a_rate(
    shown: ProgressState, line: str
) -> None:
    assert progress_line(shown) == line


def shows(root: Path, *, terminal: bool, states: list[ProgressState]) -> str:
    """What a display of two stages prints while one of them makes progress."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=100)
    with Display(console, root, "trial", ["rollout", "critique"], since=time.time() - 60) as display:
        for one in states:
            ProgressFile(0, one).write(root, "trial")
            display.refresh()
        display.show("INFO | a line of Prefect's")
        display.show("●  :25.069 632c5fac0628 prefect.flow-run.heartbeat * brave-snail")
        display.refresh(last=True)
    return said.getvalue()


def test_elsewhere_than_on_a_terminal_a_line_comes_only_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    said = shows(tmp_path, terminal=False, states=[state(1), state(2), state(3), state(3)])
    assert [line.split()[1] for line in said.splitlines() if line.startswith("rollout")] == ["1/8", "3/8"]
    assert "a line of Prefect's" in said and "brave-snail" not in said and "critique" not in said


def test_a_terminal_has_a_bar_for_each_stage_that_has_begun(tmp_path: Path) -> None:
    said = shows(tmp_path, terminal=True, states=[state(1), state(8)])
    assert "8/8 episodes" in said and "rollout" in said and "critique" not in said


def test_progress_of_an_earlier_iteration_is_not_shown(tmp_path: Path) -> None:
    ProgressFile(0, state(3)).write(tmp_path, "trial")
    path = ProgressFile.path(tmp_path, "trial", "rollout")
    assert ProgressFile.read(tmp_path, "trial", "rollout", 0.0) == ProgressFile(0, state(3))
    os.utime(path, (1000, 1000))
    assert json.loads(path.read_text())["iteration"] == 0
    assert ProgressFile.read(tmp_path, "trial", "rollout", 2000.0) is None


def test_a_failure_names_the_command_with_the_options_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / "bin" / "nlac")])
    monkeypatch.setenv("NLAC_DATA", str(tmp_path))
    assert retry_hint(tmp_path, {"run": None}, own=False).endswith("running again: make iteration")
    other = tmp_path / "other"
    said = retry_hint(other, {"run": "trial", "seed": None}, own=True)
    assert f"(after bin/nlac up --data {other})" in said
    assert said.endswith(f"bin/nlac iterate --data {other} --run trial")


def test_a_run_that_was_not_accepted_and_a_server_that_is_gone_are_told_apart(tmp_path: Path) -> None:
    gone = Stack(pid=1, port=9, data=str(tmp_path))  # nobody listens there
    assert why_failed(gone, "") == "Prefect did not accept the run; its message stands above."
    assert why_failed(gone, "1234").startswith("The Prefect server does not answer any more")
