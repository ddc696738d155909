"""Addresses of databases: what is refused and how, what the drivers get, and MLflow's records in PostgreSQL."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import ConfigError
from schemas.secret_values import secret_value
from storage.databases import MLFLOW, PREFECT, DatabaseError, check_databases, database
from storage.mlflow.backend import Backend
from storage.mlflow.bridge import Bridge
from storage.mlflow.server import server_command
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.planted import leaks
from tests.support.postgres import PASSWORD, Postgres, postgres, programs

QUOTED = "pa%40ss%2Fplanted"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    with postgres() as running:
        yield running


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mysql://u:pa%40ss%2Fplanted@h/d", "must begin with postgresql://"),
        ("pa%40ss%2Fplanted", "must begin with postgresql://"),
        ("postgresql://u:pa%40ss%2Fplanted@h", "must name a host and a database"),
        ("postgresql:///d", "must name a host and a database"),
        ("postgresql://u:pa%40ss%2Fplanted#@h/d", "Write @ / : # "),
        ("postgresql://u:pa%40ss%2Fplanted@h:many/d", "host or port can't be read"),
        ("postgresql://u:pa%40ss%2Fplanted@h/d?sslcert=x", "sslcert: not known after [?]"),
    ],
)
def test_an_address_that_can_t_be_meant_is_refused_without_being_shown(given: str, said: str) -> None:
    with pytest.raises(DatabaseError, match=said) as refused:
        database(PREFECT, {PREFECT: given})
    assert str(refused.value).startswith(PREFECT) and QUOTED not in str(refused.value)


def test_each_driver_gets_the_address_in_its_own_form() -> None:
    known = database(MLFLOW, {MLFLOW: "postgres://nlac:a%40b@db.example:6/books?sslmode=require"})
    assert known is not None
    assert known.for_mlflow == "postgresql+psycopg://nlac:a%40b@db.example:6/books?sslmode=require"
    assert known.for_prefect == "postgresql+asyncpg://nlac:a%40b@db.example:6/books?ssl=require"
    assert known.shown == "postgresql://nlac:***@db.example:6/books?sslmode=require"
    assert "a%40b" not in repr(known)
    assert database(MLFLOW, {}) is None and database(MLFLOW, {MLFLOW: " "}) is None


def test_a_secret_may_stand_in_a_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    asked = {"V": str(file)}
    with pytest.raises(ConfigError, match=r"V: .* can't be read"):
        secret_value("V", asked)
    file.touch(0o600)
    with pytest.raises(ConfigError, match="is empty"):
        secret_value("V", asked)
    file.write_text("postgresql://u:p@h/d\n")
    assert secret_value("V", asked) == "postgresql://u:p@h/d" == secret_value("V", {"V": file.read_text()})
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"V: other users can read .*; first: chmod go="):
        secret_value("V", asked)


def test_a_database_that_can_t_be_used_is_named_with_the_remedy(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("given")
    server.sql("create database foreign_one")
    elsewhere = Postgres("127.0.0.1", 9, server.folder)
    cases = {
        elsewhere.url("given"): "Does PostgreSQL run there",
        server.url(
            "given", password=f"{PASSWORD}2"
        ): "Put the right user and password into NLAC_MLFLOW_DATABASE",
        server.url("missing"): "createdb --owner",
        server.url("foreign_one"): 'ALTER DATABASE "foreign_one" OWNER TO "nlac"',
        server.url("given") + "?sslmode=require": "[?]sslmode=disable",
    }
    for address, said in cases.items():
        monkeypatch.setenv(MLFLOW, address)
        with pytest.raises(DatabaseError, match=said) as refused:
            check_databases(MLFLOW)
        assert "nlac:***@127.0.0.1" in str(refused.value)
        assert QUOTED not in str(refused.value) and PASSWORD not in str(refused.value)
    monkeypatch.setenv(MLFLOW, server.url("given"))
    check_databases(PREFECT, MLFLOW)
    monkeypatch.setenv(PREFECT, server.url("given", "another"))
    with pytest.raises(DatabaseError, match="name the same database"):
        check_databases(PREFECT, MLFLOW)


def test_a_missing_driver_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from storage.databases import Database\n"
        "Database('NLAC_MLFLOW_DATABASE', 'postgresql://u:p@h/d').check()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("not installed; first: pip install 'nlac[postgres]'")


@pytest.mark.slow
def test_mlflow_s_records_are_in_the_database_alone_and_its_password_nowhere(
    server: Postgres, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(MLFLOW, server.create("mlflow"))
    committed = commit_rows(store, "rollout", 1, {})
    bridge = Bridge(store.root)
    run = bridge.finish_stage(None, committed, Config(run="trial"))
    assert run is not None and Bridge(store.root).ensure_logged(committed, Config(run="trial")) == run
    assert server.sql(f"select status from runs where run_uuid = '{run}'", "mlflow") == [("FINISHED",)]
    assert not (bridge.home / "mlflow.db").exists()
    assert [*(bridge.home / "artifacts").rglob("manifest.json")], "beside the data, as with SQLite"
    (where,) = server.sql("select artifact_uri from runs where name = 'rollout'", "mlflow")
    assert str(where[0]).startswith("mlflow-artifacts:/"), "no path and no host"

    command, environment = server_command(store.root, 1, "u:p")
    assert environment["MLFLOW_BACKEND_STORE_URI"] == bridge.uri
    shown = "\n".join([caplog.text, *command]).encode()
    files = [path.read_bytes() for path in store.root.rglob("*") if path.is_file()]
    assert not any(leaks(content, PASSWORD, QUOTED) for content in (shown, *files))


def test_without_the_variable_no_second_store_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend(store.root)
    backend.home.mkdir(parents=True)
    (backend.home / "database").write_text("postgresql://nlac:***@db.example/mlflow\n")
    monkeypatch.delenv(MLFLOW, raising=False)
    assert backend.exists and Bridge(store.root).aliased_sources() is None
    assert f"{MLFLOW} is not set" in caplog.text and "db.example" in caplog.text
    assert not (backend.home / "mlflow.db").exists()


def test_a_host_that_has_written_no_record_knows_of_those_in_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MLFLOW, raising=False)
    assert not Backend(store.root).exists
    monkeypatch.setenv(MLFLOW, "postgresql://nlac:p@127.0.0.1:9/mlflow")
    assert Backend(store.root).exists


def test_one_host_at_a_time_writes_to_the_database(
    server: Postgres, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MLFLOW, server.create("held"))
    monkeypatch.setattr("storage.mlflow.backend.LOCK_SECONDS", 1)
    elsewhere = Backend(store.root.parent / "another host")
    with (
        Backend(store.root).writing(),
        pytest.raises(DatabaseError, match="lock timeout"),
        elsewhere.writing(),
    ):
        raise AssertionError("both hold it")
    with elsewhere.writing():
        assert elsewhere.exists
