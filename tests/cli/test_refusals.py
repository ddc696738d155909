"""What `nlac` refuses before it starts or creates anything; needs no server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.options import Commands
from schemas.load import PROJECT_ROOT
from storage.locks import RunLocked
from storage.store import Store
from tasks.thread_waits import SPINS
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.logs import conversation, write_json
from tests.support.rows import episode


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


@pytest.mark.parametrize("what", ["policy", "critic-sft", "policy-distillation"])
def test_an_export_refuses_a_run_that_is_not_there(tmp_path: Path, what: str) -> None:
    commit_rows(Store(tmp_path / "data"), "rollout", 0, {}, run="trial")
    words = ["export", what, str(tmp_path / "out.jsonl"), "--run", "trail", "--data", str(tmp_path / "data")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2 and "did you mean 'trial'" in said.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_play_refuses_a_run_that_is_not_there_or_has_no_policy(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    data = ("--data", str(store.root))
    empty = CliRunner().invoke(app, ["play", *data])
    assert empty.exit_code == 2 and "no run 'default'" in empty.stderr and "nlac iterate" in empty.stderr
    commit_rows(store, "rollout", 0, {"episodes": [episode(run="logged")]}, run="logged")
    unknown = CliRunner().invoke(app, ["play", "--run", "loged", *data])
    assert (
        unknown.exit_code == 2
        and "no run 'loged'" in unknown.stderr
        and "did you mean 'logged'?" in unknown.stderr
    )
    imported = CliRunner().invoke(app, ["play", "--run", "logged", *data])
    assert imported.exit_code == 2 and "imported episodes alone" in imported.stderr


@pytest.mark.parametrize("chosen", [{}, {"OMP_WAIT_POLICY": "PASSIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_threads_that_wait_spin_shortly_unless_the_user_has_chosen(chosen: dict[str, str]) -> None:
    code = (
        "import os, sys, flows.cli.main as cli\n"
        "cli.app = lambda: sys.exit(f\"{os.environ.get('GOMP_SPINCOUNT')} {'torch' in sys.modules}\")\n"
        "cli.main()"
    )
    named = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in named} | chosen
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"PYTHONPATH": str(PROJECT_ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    expected = chosen.get("GOMP_SPINCOUNT") if chosen else SPINS
    assert done.stderr == f"{expected} False\n"


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


def test_a_data_root_that_can_not_be_written_to_is_one_line(tmp_path: Path) -> None:
    write_json(tmp_path / "log.json", [conversation(0)])
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "data"
    result = CliRunner().invoke(app, ["import", str(tmp_path / "log.json"), "--data", str(root)])
    assert result.exit_code == 1
    assert "Not a directory; choose another data root with --data or NLAC_DATA" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_export_refuses_what_it_can_not_do(store: Store, tmp_path: Path) -> None:
    nothing = nlac(store, "export", "policy", str(tmp_path / "out"))
    assert nothing.exit_code == 1
    assert "no trained policy" in nothing.stderr and "--merge" in nothing.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    full = nlac(store, "export", "policy", str(tmp_path / "full"), "--merge")
    assert full.exit_code == 1
    assert "not an empty folder" in full.stderr
    other = nlac(store, "export", "policy", str(tmp_path / "out"), "--iteration", "3")
    assert "iteration 3 of run 'default' has no trained policy" in other.stderr
