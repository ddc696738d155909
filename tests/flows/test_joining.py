"""What is checked before a stack of several hosts starts, and which process gets which secret; no server starts."""

import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.stack.control import up
from flows.stack.environment import STACK_DIR, STACK_SECRET, client_environment, profiles_path, stack_dir
from flows.stack.hosts import Share
from flows.stack.joining import StackError, api_address, check_server, own_address
from flows.stack.private import stack_secret, take_secret
from flows.stack.supervisor import Supervisor
from schemas.load import ConfigError
from storage.databases import MLFLOW, PREFECT, DatabaseError
from tests.support.local_http import answering

SECRET = "nlac:0123456789abcdef"


def test_an_address_for_other_hosts_is_one_of_this_host(tmp_path: Path) -> None:
    assert own_address("10.0.0.1") == "10.0.0.1"
    for meant in ("0.0.0.0", "::", "some-host", "10.0.0.1:4217"):
        with pytest.raises(StackError, match=r"--listen: .* can't be used"):
            own_address(meant)
    with pytest.raises(StackError, match=r"no free port on 192\.0\.2\.1, or it is no IPv4 address of this"):
        up(tmp_path, share=Share(listen="192.0.2.1"))
    for words in (["--listen", "0.0.0.0"], ["--listen", "10.0.0.1", "--join", "http://h:1"]):
        assert CliRunner().invoke(app, ["up", "--data", str(tmp_path / "none"), *words]).exit_code != 0
    assert not (tmp_path / "none").exists()


def test_an_api_may_be_named_with_or_without_its_path() -> None:
    for given in ("http://h:4217", "http://h:4217/", "http://h:4217/api", "http://h:4217/api/"):
        assert api_address(given) == "http://h:4217/api"
    assert api_address("https://h/prefect/api") == "https://h/prefect/api"
    for wrong in ("h:4217", "http://", "ftp://h", "http://u:secret@h:4217"):
        with pytest.raises(StackError, match="the form is http://HOST:PORT") as refused:
            api_address(wrong)
        assert "secret@" not in str(refused.value)


def test_joining_needs_a_server_that_takes_this_host_s_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = iter((HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND))
    with answering(lambda request: (next(statuses), b"{}")) as server:
        url = f"{server.url}/api"
        with pytest.raises(StackError, match=f"has no secret for .*set {STACK_SECRET}"):
            up(tmp_path, share=Share(join=url))
        assert not profiles_path(tmp_path).exists() and not server.asked, "none is drawn"
        monkeypatch.setenv(STACK_SECRET, SECRET)
        assert take_secret(tmp_path)
        check_server(tmp_path, url, True)
        for said in (
            f"does not take the secret of this host; set {STACK_SECRET}",
            "is no Prefect API: it answers with status 404",
        ):
            with pytest.raises(StackError, match=said):
                check_server(tmp_path, url, True)
    with pytest.raises(StackError, match=r"does not answer .*--listen"):
        check_server(tmp_path, url, True)


def test_a_given_secret_takes_the_place_of_the_drawn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = stack_secret(tmp_path)
    monkeypatch.setenv(STACK_SECRET, SECRET)
    assert stack_secret(tmp_path) == drawn, "a stack that is up keeps its own"
    assert take_secret(tmp_path) and stack_secret(tmp_path) == SECRET
    assert profiles_path(tmp_path).stat().st_mode & 0o777 == 0o600
    for wrong in ("nlac:short", "no-colon-in-this-one", f'{SECRET}"\nx = "'):
        monkeypatch.setenv(STACK_SECRET, wrong)
        with pytest.raises(ConfigError, match="it must be user:password") as refused:
            take_secret(tmp_path)
        assert wrong not in str(refused.value)


def test_nothing_is_made_where_a_database_can_t_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    monkeypatch.setenv(PREFECT, "postgresql://nlac:planted@127.0.0.1:9/prefect")
    with pytest.raises(DatabaseError, match=f"{PREFECT}: .*Does PostgreSQL run there"):
        up(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_passwords_of_databases_reach_the_server_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFECT, "postgresql://nlac:planted-1@db/prefect?sslmode=require")
    monkeypatch.setenv(MLFLOW, "postgresql://nlac:planted-2@db/mlflow")
    monkeypatch.setenv(STACK_SECRET, SECRET)
    starting = Supervisor(tmp_path, 1, None, Share(listen="10.0.0.1"))
    told = {}
    for name in ("server", "worker-inference"):
        starting.once(name, [sys.executable, "-c", "import os; print(dict(os.environ))"])
        told[name] = (stack_dir(tmp_path) / "logs" / f"{name}.log").read_text()
    assert "'postgresql+asyncpg://nlac:planted-1@db/prefect?ssl=require'" in told["server"]
    assert "planted-1" not in told["worker-inference"] and SECRET not in "".join(told.values())
    assert "planted-2" in told["worker-inference"], "its flow runs write to MLflow"
    assert "http://10.0.0.1:1/api" in told["worker-inference"]


def test_a_host_may_keep_its_stack_beside_a_shared_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STACK_DIR, str(tmp_path / "own"))
    told = client_environment(tmp_path / "shared", "http://10.0.0.1:4217/api")
    assert told["PREFECT_HOME"] == str(tmp_path / "own" / "prefect")
    assert told["no_proxy"].endswith("127.0.0.1,10.0.0.1"), "no request to the server goes through a proxy"
