"""What `nlac` refuses before it starts or creates anything; needs no server."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.options import Commands
from schemas.load import PROJECT_ROOT
from storage.store import RunLocked


@pytest.mark.parametrize("command", ["iterate", "up"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("episodes: 3", "episodes"),
        ("rollout: {episodes: many}", "rollout.episodes"),
        ("model: {name: /no/such}", "model.name"),
        ("environment: {name: chess}", "environment.name"),
    ],
)
def test_a_bad_configuration_exits_with_2_and_creates_nothing(
    tmp_path: Path, content: str, named: str, command: str
) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    data = tmp_path / "data"
    done = CliRunner().invoke(app, [command, "--data", str(data), "--config", str(tmp_path / "bad.yaml")])
    assert done.exit_code == 2, done.output
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not data.exists()


@pytest.mark.slow
def test_the_command_itself_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("episodes: 3")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "iterate", "--config", str(tmp_path / "bad.yaml")],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "episodes" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_the_program_s_own_exceptions_are_messages_and_a_bug_keeps_its_traceback() -> None:
    two = typer.Typer(cls=Commands)

    @two.command()
    def refused() -> None:
        raise RunLocked("run 'a' is being written; wait for it")

    @two.command()
    def broken() -> None:
        raise ZeroDivisionError

    told = CliRunner().invoke(two, ["refused"])
    assert (told.exit_code, told.stderr) == (1, "run 'a' is being written; wait for it\n")
    assert isinstance(CliRunner().invoke(two, ["broken"]).exception, ZeroDivisionError)
