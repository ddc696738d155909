"""Leases keep a server alive, and it ends with them: the real supervisor, over a server that starts at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.config import EngineSection, ModelSection, ServeSection
from schemas.load import PROJECT_ROOT
from storage.guard import SECRET, RequireSecret
from tasks.chat.messages import RequestError
from tasks.engines.reaper import start_ticks, watch
from tasks.engines.vllm import leases, server_records, servers
from tasks.engines.vllm.server_supervisor import _healthy
from tasks.ports import free_port
from tests.support.local_http import answering
from tests.support.processes import all_end
from tests.support.waiting import wait_until

SERVER = PROJECT_ROOT / "tests" / "support" / "health_server.py"
ENVIRONMENT = {**os.environ, SECRET: "drawn-for-this-server"}


@dataclass
class Kept:
    """A server under test."""

    folder: Path

    def start(self, seconds: float = 20, command: list[str] | None = None) -> None:
        port = free_port(0)
        default = [sys.executable, str(SERVER), str(port), str(self.folder / "pids")]
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [word.format(port=port) for word in command or default]
        servers.launch(self.folder, port, seconds, words, ENVIRONMENT, sleeps=False)

    def wait_answers(self) -> server_records.Server:
        """The server, once it answers."""

        def ready() -> bool:
            server = server_records.read_server(self.folder)
            return server is not None and server.state == "ready"

        wait_until(ready, 60, "the server's first answer")
        server = server_records.read_server(self.folder)
        assert server is not None
        return server

    def wait_ready(self) -> list[psutil.Process]:
        """ServerSupervisor, server, and what the server started."""
        server = self.wait_answers()
        pids = [server.supervisor, *map(int, (self.folder / "pids").read_text().split())]
        return [psutil.Process(pid) for pid in pids]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    server = Kept(tmp_path / "servers" / "one")
    yield server
    for lease in leases.live(server.folder):
        lease.unlink()
    if running := server_records.read_server(server.folder):
        all_end([psutil.Process(running.supervisor)], 15)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_lease_counts_while_its_process_lives(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    own, other = leases.hold(tmp_path, "stage"), leases.hold(tmp_path, "iteration", owner.pid)
    assert set(leases.live(tmp_path)) == {own, other}
    assert leases.live(tmp_path, "iteration", "stack") == [other]
    owner.kill()
    owner.wait()
    assert leases.live(tmp_path) == [own]
    assert not other.exists()


def test_another_process_with_the_same_pid_does_not_count(tmp_path: Path) -> None:
    own = leases.identity(os.getpid())
    pid, started, boot, host = own.split("-", 3)
    assert leases.is_alive(own)
    assert not leases.is_alive(f"{pid}-{int(started) - 6000}-{boot}-{host}")
    assert not leases.is_alive(f"{pid}-{started}-{'0' * 32}-{host}"), "the machine was started anew"


def test_a_step_of_the_clock_voids_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = leases.hold(tmp_path, "stage")
    read = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: read(process) + 3600)
    assert leases.live(tmp_path) == [lease] and lease.exists()


def test_a_lease_of_another_host_neither_counts_nor_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "host", lambda: "far-away.example")
    lease = leases.hold(tmp_path, "stage")
    assert leases.live(tmp_path) == [lease]
    monkeypatch.undo()
    assert leases.live(tmp_path) == [] and lease.exists()


def test_a_reaper_kills_what_it_was_named_though_the_clock_has_moved(
    owner: subprocess.Popen[bytes],
) -> None:
    assert str(start_ticks(owner.pid)).isdecimal()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    reaper = watch([psutil.Process(owner.pid)])
    reaper.communicate()
    assert owner.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    assert start_ticks(other.pid) is None


def test_our_own_servers_are_never_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        answering(lambda request: (200, b"null")) as server,
        answering(lambda request: (403, b"null")) as proxy,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        running = server_records.Server(
            supervisor=1, identity="", port=server.port, key="", state="ready", sleeps=False, started=0.0
        )
        assert servers.answers(running) and _healthy(server.port)
    assert server.asked == ["GET /health"] * 2 and proxy.asked == []


def test_a_server_answers_nobody_without_its_key_which_no_command_line_shows(kept: Kept) -> None:
    leases.hold(kept.folder, "stage")
    guarded = (
        "--lifespan",
        "off",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "tests.support.guarded_server:app",
    )
    kept.start(command=[sys.executable, "-m", "uvicorn", *guarded])
    server = kept.wait_answers()
    assert server.key == ENVIRONMENT[SECRET]
    servers._call(server, "POST", "/sleep")
    stranger = server.model_copy(update={"key": "another"})
    assert servers.answers(stranger), "/health needs no key"
    for path in ("/v1/models", "/sleep", "/collective_rpc", "/metrics", "/openapi.json"):
        with pytest.raises(RequestError, match="401"):
            servers._call(stranger, "POST", path)
    supervisor = psutil.Process(server.supervisor)
    commands = [" ".join(p.cmdline()) for p in (supervisor, *supervisor.children(recursive=True))]
    assert any("guarded_server" in command for command in commands)
    assert not any(server.key in command for command in commands)


def test_vllm_is_started_behind_the_guard_with_the_key_in_its_environment_alone(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def launched(*given: Any, sleeps: bool, weights: str) -> None:
        assert weights == "", "adapters come and go"
        started.append(given[-2:])

    monkeypatch.setattr(servers, "launch", launched)
    section = EngineSection(backend="openai", serve=ServeSection())
    for _ in range(2):
        servers._start(section, ModelSection(name=str(tiny_checkpoint)), tmp_path, tmp_path, None)
    (command, environment), (_, second) = started
    assert command[command.index("--middleware") + 1] == f"{RequireSecret.__module__}.RequireSecret"
    assert len(environment[SECRET]) >= 32 and environment[SECRET] != second[SECRET]
    assert not any(environment[SECRET] in word for word in command)


def test_a_server_ends_when_its_owner_is_killed(kept: Kept, owner: subprocess.Popen[bytes]) -> None:
    leases.hold(kept.folder, "iteration", owner.pid)
    kept.start()
    processes = kept.wait_ready()
    starts = kept.folder / "starts.jsonl"  # written after the server is said to be ready
    wait_until(lambda: starts.exists() and starts.read_text().endswith("\n"), 15, "a line for the start")
    assert len(starts.read_text().splitlines()) == 1
    assert (kept.folder / "server.json").stat().st_mode & 0o077 == 0  # it holds the key
    assert processes[0].parent() != psutil.Process()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert all_end(processes, 15)
    assert server_records.read_server(kept.folder) is None


def test_a_server_outlives_one_of_two_who_want_it(kept: Kept, owner: subprocess.Popen[bytes]) -> None:
    stage = leases.hold(kept.folder, "stage")
    leases.hold(kept.folder, "stack", owner.pid)
    kept.start()
    processes = kept.wait_ready()
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stale = leases.hold(kept.folder, "stage", gone.pid)
    stage.unlink()
    gone.communicate(b"\n")
    wait_until(lambda: not stale.exists(), 15, "the supervisor's next look at the leases")
    assert all(process.is_running() for process in processes)
    owner.kill()
    owner.wait()
    assert all_end(processes, 15)


@pytest.mark.slow
def test_a_server_that_stops_answering_is_ended_and_its_log_says_so(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SILENCE_SECONDS", 2.0)
    leases.hold(kept.folder, "stage")
    kept.start()
    processes = kept.wait_ready()
    # The supervisor asks ten times in so many seconds.
    answers = kept.folder / "pids.answers"
    wait_until(lambda: len(answers.read_text().splitlines()) > 12, 60, "more answers than that")
    assert all(process.is_running() for process in processes)
    processes[1].send_signal(signal.SIGSTOP)
    assert all_end(processes, 40)  # SIGTERM does not reach what is stopped
    assert server_records.read_server(kept.folder) is None
    assert "no answer to /health in 2 s" in servers.last_error(kept.folder)


def test_a_killed_supervisor_takes_its_server_along(kept: Kept) -> None:
    leases.hold(kept.folder, "stage")
    kept.start()
    processes = kept.wait_ready()
    processes[0].send_signal(signal.SIGKILL)
    assert all_end(processes, 15)
    assert server_records.read_server(kept.folder) is None


def test_what_a_killed_supervisor_left_is_ended_before_the_next_start(
    kept: Kept, owner: subprocess.Popen[bytes]
) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    left = server_records.Server(
        supervisor=supervisor.pid, identity=leases.identity(supervisor.pid), port=1, key="", state="ending",
        sleeps=False, processes=(leases.identity(owner.pid),), started=0.0,
    )  # fmt: skip
    supervisor.kill()
    supervisor.wait()
    kept.folder.mkdir(parents=True)
    (kept.folder / "server.json").write_text(left.model_dump_json())
    server_records.await_turn(kept.folder, "")
    assert owner.wait(10) == -signal.SIGKILL


def test_a_server_that_dies_is_no_longer_found(kept: Kept) -> None:
    leases.hold(kept.folder, "stage")
    kept.start()
    processes = kept.wait_ready()
    processes[1].send_signal(signal.SIGKILL)
    assert all_end(processes, 15)
    assert server_records.read_server(kept.folder) is None


def test_a_server_that_does_not_answer_in_time_is_given_up_and_says_why(kept: Kept) -> None:
    leases.hold(kept.folder, "stage")
    silent = "import time; print('ValueError: no room', flush=True); time.sleep(600)"
    kept.start(seconds=1.0, command=[sys.executable, "-c", silent])
    wait_until(
        lambda: server_records.read_server(kept.folder) is None, 60, "the end of a server that is silent"
    )
    assert servers.last_error(kept.folder) == "ValueError: no room"


def test_the_stack_keeps_the_servers_of_the_last_iteration_and_lets_go_of_others(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = ModelSection(name=str(tmp_path))
    small, large = (EngineSection(backend="openai", serve=ServeSection(), max_batch=size) for size in (2, 4))
    first, second = (server_records.server_dir(section, model, tmp_path) for section in (small, large))
    assert first != second

    def held(folder: Path) -> list[str]:
        return sorted(lease.name.split("-")[0] for lease in leases.live(folder))

    with servers.serving([small, EngineSection()], model, tmp_path, owner.pid):
        assert held(first) == ["iteration", "stack"]
    with servers.serving([small], model, tmp_path, owner.pid):
        assert held(first) == ["iteration", "stack"]
        with servers.serving([large], model, tmp_path, owner.pid):
            assert (held(first), held(second)) == (["iteration"], ["iteration", "stack"])
    assert (held(first), held(second)) == ([], ["stack"])
    with servers.serving([small], model, tmp_path):
        assert held(first) == ["iteration"]
    assert held(first) == []


def test_arguments_of_the_engine_are_written_as_those_of_the_command() -> None:
    arguments = {"max_num_seqs": 8, "enable_lora": True, "enable_log_requests": False, "revision": None}
    given = servers.command_line({**arguments, "names": ["a", "b"], "extra": {"k": 1}})
    assert list(given) == [
        "--max-num-seqs=8", "--enable-lora", "--no-enable-log-requests", "--names", "a", "b", '--extra={"k": 1}',
    ]  # fmt: skip
