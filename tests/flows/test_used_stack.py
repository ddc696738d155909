"""The stack that `nlac iterate` uses: one that is up, or a server that it starts. No Prefect server is started here."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from flows.stack import control
from flows.stack.control import down, keep_up, used_stack, whole_stack
from flows.stack.environment import stack_dir
from flows.stack.hosts import ROLES
from flows.stack.joining import StackError
from flows.stack.private import make_stack_dir
from flows.stack.record import TEMPORARY, Stack, read_stack, recorded_stack
from flows.stack.supervisor import Supervisor
from schemas.load import PROJECT_ROOT

SUPERVISES = """
import signal, sys
from pathlib import Path
from filelock import FileLock
from flows.stack.record import TEMPORARY, Stack, write_stack
import os
root = Path(sys.argv[1])
with FileLock(root / ".stack" / "lock"):
    signal.signal(signal.SIGTERM, lambda *_: None)
    write_stack(root, Stack(pid=os.getpid(), port=9, data=str(root), state="ready"))
    print("up", flush=True)
    signal.pause()
    print("without workers" if (root / ".stack" / TEMPORARY).exists() else "whole")
"""


def test_a_stack_that_one_iteration_started_is_stopped_by_the_last_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def starts(root: Path, config: Path | None, *, temporary: bool, ahead: Callable[[str], object]) -> Stack:
        """As `up`, with a supervisor that has nothing to supervise."""
        ahead("the address")
        command = [sys.executable, "-c", SUPERVISES, str(root)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT_ROOT))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == b"up\n"
        running = read_stack(root)
        assert running is not None and temporary
        (stack_dir(root) / TEMPORARY).touch()
        return running

    monkeypatch.setattr(control, "up", starts)
    said: list[str] = []
    with ExitStack() as first, ExitStack() as second:
        told: list[str] = []
        stack, own = first.enter_context(
            used_stack(tmp_path, None, said.append, lambda address: told.extend([said[-1], address]))
        )
        assert told == ["Starting a Prefect server ...", "the address"]
        again = used_stack(tmp_path, None, said.append, told.append)
        assert second.enter_context(again) == (stack, own) == (stack, True)
        assert len(told) == 2
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
    ended = [process.communicate()[0] for process in started]
    assert ended == [b"without workers\n", b"whole\n"], "no stack that is being stopped starts its workers"


def test_a_temporary_stack_is_its_server_alone_until_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(tmp_path, 9, None)
    started: list[str] = []
    monkeypatch.setattr(supervisor, "keep", lambda name, command: started.append(name))
    monkeypatch.setattr(supervisor, "once", lambda name, command: started.append(name))
    monkeypatch.setattr(supervisor, "wait_for_server", lambda seconds: None)
    make_stack_dir(tmp_path)
    (stack_dir(tmp_path) / TEMPORARY).touch()
    supervisor.start()
    supervisor.complete()
    assert started == ["server", "provision"] and supervisor.stack.state == "server"
    keep_up(tmp_path)
    supervisor.complete()
    supervisor.complete()
    workers = [f"worker-{role}" for role in ROLES]
    assert (
        started == ["server", "provision", *workers, "deploy"]
        and recorded_stack(tmp_path) == supervisor.stack
    )
    assert supervisor.stack.state == "ready"


def test_who_waits_for_the_whole_stack_is_told_when_it_ends_before(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the local stack ended: see the logs in"):
        whole_stack(tmp_path)
