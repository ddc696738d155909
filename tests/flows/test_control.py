"""The local stack that is not up, and one whose parts do not come up; no Prefect server is started."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from flows.cli import doctor
from flows.stack import control
from flows.stack import supervisor as supervisor_module
from flows.stack.control import down, lacking_settings, up
from flows.stack.environment import STACK_MARK, client_environment, profiles_path, stack_dir
from flows.stack.joining import StackError
from flows.stack.private import exposed, make_private, make_stack_dir, stack_secret
from flows.stack.record import Stack, read_stack, write_stack
from flows.stack.supervisor import SETTLE_SECONDS, Supervisor
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


def test_a_stack_of_another_host_is_none_here_and_stays_untouched(tmp_path: Path) -> None:
    """Hosts may share the folder. The number of its supervisor is another process's here, or none's."""
    stack = Stack(pid=os.getpid(), port=9, data=str(tmp_path), state="ready", host="far-away")
    (tmp_path / ".stack").mkdir()
    write_stack(tmp_path, stack)
    with FileLock(stack_dir(tmp_path) / "lock"):
        assert read_stack(tmp_path) is None
        for command in (down, up):
            with pytest.raises(StackError, match=r"host 'far-away'.* set NLAC_STACK_DIR"):
                command(tmp_path)
    assert Stack.model_validate_json((stack_dir(tmp_path) / "stack.json").read_text()) == stack
    assert not down(tmp_path), "it has ended there"


def test_relative_paths_are_meant_from_where_the_person_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_world.py").write_text("here = True")
    (tmp_path / "own_model").mkdir()
    (tmp_path / "own_model" / "config.json").write_text("{}")
    (tmp_path / "own.j2").write_text("mine")
    (tmp_path / "own.yaml").write_text(
        "run: mine\nmodel: {name: ./own_model}\nroles: {policy: {template: own.j2}}"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", str(PROJECT_ROOT)]))
    code = (
        "import own_world, schemas.load, tasks.engines.models, tasks.prompting.rendering\n"
        "config = schemas.load.load_config('own.yaml')\n"
        "template = tasks.prompting.rendering.role_templates(config)['policy']\n"
        "print(config.run, tasks.engines.models.resolve_model(config.model), template.read_text())"
    )
    worker = client_environment(tmp_path / "data", "http://127.0.0.1:9/api")
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=worker, capture_output=True, text=True, check=False
    )
    assert elsewhere.stdout == f"mine {tmp_path / 'own_model'} mine\n", elsewhere.stderr


def test_a_stack_shares_the_user_s_converted_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NLAC_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    worker = client_environment(tmp_path / "data", "http://127.0.0.1:9/api")
    assert worker["XDG_CACHE_HOME"] == str(tmp_path / "data" / ".cache")
    assert worker["NLAC_MODEL_CACHE"] == str(tmp_path / "mine" / "nlac" / "models")


def test_down_ends_what_a_killed_supervisor_has_left(tmp_path: Path) -> None:
    left = subprocess.Popen(WAITS, env={**os.environ, STACK_MARK: str(tmp_path)}, start_new_session=True)
    other = subprocess.Popen(WAITS, env={**os.environ, STACK_MARK: str(tmp_path / "other")})
    assert read_stack(tmp_path) is None and down(tmp_path)
    assert not psutil.pid_exists(left.pid) and other.poll() is None
    assert not down(tmp_path)
    left.wait()
    other.kill()
    other.wait()


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


def test_what_a_killed_supervisor_left_is_ended_whoever_adopted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = {**os.environ, STACK_MARK: str(tmp_path)}
    left, begun, elses = (
        subprocess.Popen(WAITS, env=environment)
        for environment in (marked, marked, {**marked, STACK_MARK: "another"})
    )
    starting = Supervisor(tmp_path, 9, None, spare=begun.pid)
    for part in ("keep", "once"):
        monkeypatch.setattr(starting, part, lambda name, command: None)
    monkeypatch.setattr(starting, "wait_for_server", lambda seconds: None)
    make_stack_dir(tmp_path)
    starting.prepare()
    assert left.poll() is not None and begun.poll() is elses.poll() is None
    for process in (begun, elses):
        process.kill()
        process.wait()


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


def test_after_a_death_lost_runs_are_looked_for_until_none_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = tmp_path / "looks"
    doubts_once = f"import sys; n = open({str(looks)!r}, 'a'); sys.exit(n.tell() < n.write(sys.argv[1]))"
    monkeypatch.setattr(Supervisor, "_provision", [sys.executable, "-c", doubts_once])
    supervisor = Supervisor(tmp_path, 0, None)
    supervisor.keep("worker", [sys.executable, "-c", ""])
    begin = supervisor.services["worker"].started
    supervisor.services["worker"].child.wait()
    seconds = []
    for second in range(60):
        supervisor.revive(begin + second)
        if len(supervisor.services) and second > 1:
            supervisor.services.pop("worker").child.wait()
        before = looks.read_text() if looks.exists() else ""
        supervisor.settle(begin + second)
        if supervisor._settling is not None:
            supervisor._settling.wait()
            if looks.read_text() != before:
                seconds.append(second)
    assert looks.read_text() == "--lost--lost"
    assert seconds[0] >= SETTLE_SECONDS and seconds[1] - seconds[0] >= SETTLE_SECONDS


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


def test_plain_prefect_commands_lack_nothing_in_the_checkout_where_its_own_stack_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT_ROOT)
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    usual = Stack(pid=1, port=control.USUAL_PORT, data=str(PROJECT_ROOT / "data"))
    assert lacking_settings(usual) == {}
    elsewhere = {"PREFECT_PROFILES_PATH": str(tmp_path / ".stack" / "profiles.toml")}
    assert lacking_settings(usual.model_copy(update={"data": str(tmp_path)})) == elsewhere
    monkeypatch.setenv("PREFECT_PROFILE", "mine")
    assert lacking_settings(usual) == {"PREFECT_PROFILE": "nlac"}
    everything = {"PREFECT_API_URL", "PREFECT_PROFILES_PATH", "PREFECT_PROFILE"}
    monkeypatch.chdir(tmp_path)
    assert lacking_settings(usual).keys() == everything, "Prefect reads the pyproject.toml of its own folder"
    monkeypatch.setattr(control, "PROJECT_ROOT", tmp_path)
    assert lacking_settings(usual).keys() == everything


def test_prefect_finds_the_secret_of_the_checkout_s_own_stack(tmp_path: Path) -> None:
    shutil.copy(PROJECT_ROOT / "pyproject.toml", tmp_path)
    secret = stack_secret(tmp_path / "data")
    code = (
        "from prefect.settings import get_current_settings as read\n"
        "print(read().api.auth_string.get_secret_value(), read().server.api.auth_string.get_secret_value())"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    plain["HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=plain, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [secret, secret], done.stderr


def test_the_secret_is_drawn_once_and_only_its_user_reads_it(tmp_path: Path) -> None:
    first = stack_secret(tmp_path / "data")
    assert first == stack_secret(tmp_path / "data") != stack_secret(tmp_path / "other")
    assert first.startswith("nlac:") and len(first) > 40
    file = profiles_path(tmp_path / "data")
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, tmp_path / "data")]
    assert modes == [0o600, 0o700, 0o700]


def test_what_an_earlier_version_left_open_is_closed_and_a_shared_data_root_stays_shared(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    for folder, database in ((".stack/prefect", "prefect.db"), (".mlflow", "mlflow.db")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / database).touch()
        (tmp_path / folder / database).chmod(0o644)
    for folder in (".stack", ".mlflow"):
        (tmp_path / folder).chmod(0o755)
    stack_secret(tmp_path)
    names = {".stack", ".mlflow", "prefect.db", "mlflow.db"}
    assert {path.name for path in exposed(tmp_path)} == names
    said = [(f.state, f.remedy) for f in doctor.access(tmp_path, None)]
    assert said[0] == ("note", f"chmod 700 {tmp_path}, unless they are to read its texts")
    assert [state for state, _ in said[1:]] == ["note"] * 4
    make_private(tmp_path)
    assert list(exposed(tmp_path)) == [] and tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o700)
    assert [f.state for f in doctor.access(tmp_path, None)] == ["ok"]
