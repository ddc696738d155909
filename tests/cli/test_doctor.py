"""`nlac doctor`: each check says what is found, and a remedy where something is missing."""

import json
import socket
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from flows.cli import doctor
from flows.cli.main import app
from flows.stack import control
from flows.stack.environment import stack_dir
from flows.stack.record import Stack, write_stack
from storage.mlflow import server


def found(check: str, root: Path, config: Path | None = None) -> list[tuple[str, str, str]]:
    return [(f.state, f.said, f.remedy) for f in getattr(doctor, check)(root, config)]


def test_the_command_runs_every_check_and_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "data"
    result = CliRunner().invoke(app, ["doctor", "--data", str(root)])
    assert result.exit_code in (0, 1), result.output
    for check in doctor.CHECKS:
        assert f"  {check.__name__:<9}  " in result.stdout
    said = " ".join(CliRunner().invoke(app, ["doctor", "--help"]).stdout.split()).lower()
    assert all(check.__name__ in said for check in doctor.CHECKS)
    assert not root.exists()


def test_other_versions_than_the_tested_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROJECT_ROOT", tmp_path)
    [(state, said, _)] = found("packages", tmp_path)
    assert state == "note" and "constraints.txt is not here" in said
    (tmp_path / "constraints.txt").write_text("# pins\npydantic==0.0.1  # old\nno-such-package-here==1\n")
    [(state, said, remedy)] = found("packages", tmp_path)
    assert state == "note" and "pydantic" in said and "not 0.0.1" in said and "no-such" not in said
    assert "constraints.txt" in remedy


def test_a_missing_model_and_little_room_have_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: {name: /no/such}")
    [(state, _, remedy)] = found("model", tmp_path, config)
    assert state == "bad" and "give a folder written by save_pretrained" in remedy
    monkeypatch.setattr(doctor, "DISK_GB", 1e9)
    monkeypatch.setattr(doctor, "MEMORY_GB", 1e9)
    [(state, _, remedy)] = found("disk", tmp_path)
    assert state == "note" and "nlac gc" in remedy
    assert found("memory", tmp_path)[0][0] == "note"
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (9, 0))
    assert found("python", tmp_path)[0][0] == "bad"


def test_the_stack_is_up_or_failed_and_ports_are_free_or_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(control, "USUAL_PORT", other.getsockname()[1])
        [(state, said, remedy)] = found("stack", tmp_path)
        assert state == "note" and "taken by another program" in said and "PREFECT_API_URL" in remedy
        monkeypatch.setattr(server, "USUAL_PORT", other.getsockname()[1])
        [(state, said, remedy)] = found("mlflow", tmp_path)
        assert state == "note" and "taken by" in said and "nlac mlflow-ui" in remedy
    [(state, said, remedy)] = found("mlflow", tmp_path)
    assert (state, remedy) == ("ok", "") and "free" in said
    stack_dir(tmp_path).mkdir()
    with FileLock(stack_dir(tmp_path) / "lock"):
        for known, expected in (("ready", "ok"), ("failed", "bad")):
            write_stack(tmp_path, Stack(pid=1, port=9, data=str(tmp_path), state=known))  # type: ignore[arg-type]
            [(state, said, _)] = found("stack", tmp_path)
            assert state == expected and said.startswith(known)


def test_the_findings_can_be_read_by_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (doctor.python, doctor.disk))
    result = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path), "--format", "json"])
    assert [finding["check"] for finding in json.loads(result.stdout)] == ["python", "disk"]
