"""Prefect's records in PostgreSQL: the server starts there, is provisioned there, and shows the password nowhere."""

from pathlib import Path

import pytest

from flows.stack.environment import stack_dir
from flows.stack.hosts import Share
from flows.stack.private import stack_secret
from flows.stack.processes import marked_processes
from flows.stack.supervisor import Supervisor
from storage.databases import PREFECT
from tasks.ports import free_port
from tests.support.planted import leaks
from tests.support.postgres import PASSWORD, postgres, programs


@pytest.mark.slow
def test_a_server_keeps_its_records_in_the_database_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    stack_secret(tmp_path)
    with postgres() as database:
        monkeypatch.setenv(PREFECT, database.create("prefect"))
        starting = Supervisor(tmp_path, free_port(0), None, Share(roles=()))
        try:
            starting.prepare()
            pools = database.sql("select name from work_pool order by name", "prefect")
            assert pools == [("nlac-inference",), ("nlac-orchestration",), ("nlac-training",)]
            commands = [" ".join(process.cmdline()) for process in marked_processes(tmp_path)]
            assert any("server start" in command for command in commands)
        finally:
            starting.stop()
    assert not [*(stack_dir(tmp_path) / "prefect").glob("*.db")]
    shown = [*map(str.encode, commands), *(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())]
    assert not any(leaks(content, PASSWORD, "pa%40ss%2Fplanted") for content in shown)
