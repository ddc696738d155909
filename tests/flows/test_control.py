"""The local stack that is not up, and one whose parts do not come up; no Prefect server is started."""

import itertools
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock

from flows.stack import control
from flows.stack import supervisor as supervisor_module
from flows.stack.control import (
    Stack,
    StackError,
    default_api_url,
    down,
    keep_up,
    read_stack,
    up,
    used_stack,
    write_stack,
)
from flows.stack.environment import client_environment, stack_dir
from flows.stack.supervisor import Supervisor
from schemas.load import PROJECT_ROOT
from tasks.ports import free_port
from tests.support.waiting import wait_until

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


SUPERVISES = """
import signal, sys
from pathlib import Path
from filelock import FileLock
from flows.stack.control import Stack, write_stack
import os
root = Path(sys.argv[1])
with FileLock(root / ".stack" / "lock"):
    write_stack(root, Stack(pid=os.getpid(), port=9, data=str(root), state="ready"))
    print("up", flush=True)
    signal.pause()
"""


def test_a_stack_that_one_iteration_started_is_stopped_by_the_last_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def starts(root: Path, config: Path | None) -> Stack:
        """As `up`, with a supervisor that has nothing to supervise."""
        command = [sys.executable, "-c", SUPERVISES, str(root)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT_ROOT))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == b"up\n"
        running = read_stack(root)
        assert running is not None
        return running

    monkeypatch.setattr(control, "up", starts)
    said: list[str] = []
    with ExitStack() as first, ExitStack() as second:
        stack, own = first.enter_context(used_stack(tmp_path, None, said.append))
        assert second.enter_context(used_stack(tmp_path, None, said.append)) == (stack, own) == (stack, True)
        first.close()
        assert read_stack(tmp_path) == stack and said[-1].startswith("Another iteration uses the local stack")
        second.close()
        assert read_stack(tmp_path) is None and said[-1] == "Stopping the local stack ..."
    with used_stack(tmp_path, None, said.append):
        keep_up(tmp_path)  # `nlac up` meanwhile
    assert read_stack(tmp_path) is not None and len(started) == 2
    with used_stack(tmp_path, None, said.append) as (_, own):
        assert not own
    assert down(tmp_path) and read_stack(tmp_path) is None
    for process in started:
        process.communicate()


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
    starting.services["server"].child.wait()
    with pytest.raises(StackError, match=r"ended at once; see .*server\.log"):
        starting.wait_for_server(60)
    starting.keep("server", WAITS)
    with pytest.raises(StackError, match=r"did not answer within 0 s; see .*server\.log"):
        starting.wait_for_server(0)
    starting.stop()
    assert starting.services["server"].child.poll() is not None


def test_prefect_is_not_asked_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    environment = client_environment(tmp_path, "http://127.0.0.1:4217/api")
    assert environment["no_proxy"] == "example.org,127.0.0.1"
    monkeypatch.delenv("NO_PROXY")
    assert client_environment(tmp_path, "http://127.0.0.1:4217/api")["no_proxy"] == "127.0.0.1"


def test_a_service_that_keeps_dying_is_started_again_ever_more_seldom(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, 0, None)
    supervisor.keep("worker", [sys.executable, "-c", "print('died')"])
    begin = supervisor.services["worker"].started
    starts, last = [], supervisor.services["worker"].child

    def pass_time(seconds: range) -> None:
        nonlocal last
        for second in seconds:
            supervisor.services["worker"].child.wait()
            supervisor.revive(begin + second)
            if (child := supervisor.services["worker"].child) is not last:
                last = child
                starts.append(second)

    pass_time(range(200))
    waits = [later - earlier for earlier, later in itertools.pairwise([0, *starts])]
    assert waits == [1, 3, 5, 9, 17, 33, 61, 61], "a death is noticed a second later, then it waits"
    pass_time(range(251, 252))
    supervisor.services["worker"].started = begin  # this one has lived for minutes
    starts.clear()
    pass_time(range(300, 303))
    assert starts == [301]
    log = stack_dir(tmp_path) / "logs" / "worker.log"
    supervisor.services["worker"].child.wait()
    assert log.read_text().count("died") == 11


def test_logs_are_bounded_while_their_writers_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "LOG_BYTES", 1000)
    supervisor = Supervisor(tmp_path, 0, None)
    talks = "import sys\nfor line in sys.stdin: print(line * 300, flush=True)"
    log = stack_dir(tmp_path) / "logs" / "worker.log"
    log.parent.mkdir(parents=True)
    with log.open("ab") as sink:
        writer = subprocess.Popen(
            [sys.executable, "-c", talks], stdin=subprocess.PIPE, stdout=sink, text=True
        )
    assert writer.stdin is not None
    for line in ("one\n", "two\n", "three\n"):
        writer.stdin.write(line)
        writer.stdin.flush()
        wait_until(lambda line=line: log.read_text().count(line) == 300, 30, "the writer's lines")
        supervisor.bound_logs()
        assert log.stat().st_size == 0
        assert log.with_name("worker.log.before").read_text().count(line) == 300
    writer.communicate()


def test_without_a_checkout_no_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PROJECT_ROOT", tmp_path)
    assert default_api_url() is None
