"""The local stack that is not up, and one whose parts do not come up; no Prefect server is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from flows.stack import control
from flows.stack.control import Stack, StackError, default_api_url, down, read_stack, up, write_stack
from flows.stack.environment import client_environment, stack_dir
from flows.stack.supervisor import Supervisor
from schemas.load import PROJECT_ROOT
from tasks.ports import free_port

WAITS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_stack_is_up_while_its_supervisor_holds_the_lock(tmp_path: Path) -> None:
    assert read_stack(tmp_path) is None and not down(tmp_path)
    stack = Stack(pid=1, port=9, data=str(tmp_path), state="ready")
    (tmp_path / ".stack").mkdir()
    write_stack(tmp_path, stack)
    with FileLock(stack_dir(tmp_path) / "lock"):
        assert read_stack(tmp_path) == stack
        write_stack(tmp_path, None)
        assert read_stack(tmp_path) is None  # it starts, and has said nothing yet
    write_stack(tmp_path, stack)
    assert read_stack(tmp_path) is None, "what a killed supervisor left does not count"


def test_relative_paths_are_meant_from_where_the_person_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_world.py").write_text("here = True")
    (tmp_path / "own.yaml").write_text("run: mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", str(PROJECT_ROOT)]))
    code = "import own_world, schemas.load; print(schemas.load.load_config('own.yaml').run)"
    worker = client_environment(tmp_path / "data", "http://127.0.0.1:9/api")
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=worker, capture_output=True, text=True, check=False
    )
    assert elsewhere.stdout == "mine\n", elsewhere.stderr


def test_a_stack_shares_the_user_s_converted_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NLAC_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    worker = client_environment(tmp_path / "data", "http://127.0.0.1:9/api")
    assert worker["XDG_CACHE_HOME"] == str(tmp_path / "data" / ".cache")
    assert worker["NLAC_MODEL_CACHE"] == str(tmp_path / "mine" / "nlac" / "models")


def test_a_supervisor_that_ends_at_once_names_its_log(tmp_path: Path) -> None:
    stack_dir(tmp_path).mkdir()
    with (
        FileLock(stack_dir(tmp_path) / "lock"),
        pytest.raises(StackError, match=r"did not start: see .*supervisor\.log"),
    ):
        up(tmp_path)
    assert "Timeout" in (stack_dir(tmp_path) / "logs" / "supervisor.log").read_text()


def test_a_stack_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="not ready after 0 s; see the logs in"):
        up(tmp_path, seconds=0)
    with FileLock(stack_dir(tmp_path) / "lock", timeout=0):
        assert read_stack(tmp_path) is None


def test_a_part_that_fails_ends_the_start_by_name(tmp_path: Path) -> None:
    starting = Supervisor(tmp_path, free_port(0), None)
    starting.once("fine", [sys.executable, "-c", ""])
    with pytest.raises(StackError, match=r"provision failed; see .*provision\.log"):
        starting.once("provision", [sys.executable, "-c", "raise SystemExit(3)"])
    starting.stopping.set()  # `nlac down` in the middle of a start does not wait for its parts
    with pytest.raises(StackError, match="deploy failed"):
        starting.once("deploy", WAITS)


def test_a_server_that_dies_or_is_silent_ends_the_start(tmp_path: Path) -> None:
    starting = Supervisor(tmp_path, free_port(0), None)
    starting.keep("server", [sys.executable, "-c", ""])
    starting.services["server"][1].wait()
    with pytest.raises(StackError, match=r"ended at once; see .*server\.log"):
        starting.wait_for_server(60)
    starting.keep("server", WAITS)
    with pytest.raises(StackError, match=r"did not answer within 0 s; see .*server\.log"):
        starting.wait_for_server(0)
    starting.stop()
    assert starting.services["server"][1].poll() is not None


def test_prefect_is_not_asked_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    environment = client_environment(tmp_path, "http://127.0.0.1:4217/api")
    assert environment["no_proxy"] == "example.org,127.0.0.1"
    monkeypatch.delenv("NO_PROXY")
    assert client_environment(tmp_path, "http://127.0.0.1:4217/api")["no_proxy"] == "127.0.0.1"


def test_without_a_checkout_no_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PROJECT_ROOT", tmp_path)
    assert default_api_url() is None
