"""Two worker hosts that share PostgreSQL and the data root run an iteration, and one of them dies in the middle."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.reliability.tables import compare
from flows.stack.environment import STACK_SECRET
from schemas.load import PROJECT_ROOT, data_root
from storage.databases import MLFLOW, PREFECT
from storage.store import Store
from tasks.imports import ALLOW_IMPORT
from tests.support.hosts import FIRST, done, hosts, lacking
from tests.support.planted import leaks
from tests.support.postgres import PASSWORD, postgres, programs
from tests.support.stack import CONFIG
from tests.support.waiting import wait_until

OTHER_ENDS = """
    select flow_run.name || ' ' || state.name, state.message
    from flow_run join flow_run_state state on state.id = flow_run.state_id where state.name <> 'Completed'
"""
TRACKED = "select count(*) from runs where status = 'FINISHED' and artifact_uri like 'mlflow-artifacts:/%'"
RULES = {"rules": {"backend": "scripted", "rules": "tests.support.hosts_rules:located"}}


def environment(shared: Path, data: str) -> dict[str, str]:
    """The variables of all hosts: where the data is, and the secret; no database."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    ours = {
        "NLAC_DATA": data,
        STACK_SECRET: f"nlac:{secrets.token_urlsafe(24)}",
        "NLAC_TEST_STEER": str(shared / "steer"),
        "PYTHONPATH": str(PROJECT_ROOT),
        ALLOW_IMPORT: "tests",
    }
    return {**kept, **ours}


@pytest.mark.long
def test_an_iteration_survives_the_loss_of_a_host(tmp_path: Path, tiny_checkpoint: Path) -> None:
    if reason := lacking():
        pytest.skip(reason)
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    shared, steer = tmp_path / "shared", tmp_path / "shared" / "steer"
    steer.mkdir(parents=True)
    data = str(shared / "data")
    model = {
        "name": str(tiny_checkpoint),
        "dtype": "float32",
        "context_length": 4096,
        "lora": {"r": 2, "alpha": 4},
    }
    config = shared / "hosts.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "run": "trial", "model": model, "engines": RULES}))
    variables = environment(shared, data)

    with (
        hosts(["server", "one", "two"], tmp_path, variables) as (server, one, two),
        postgres(FIRST, ("ip", "netns", "exec", server.network)) as database,
    ):
        variables |= {MLFLOW: database.create("mlflow"), PREFECT: database.create("prefect")}
        asked = ("--config", str(config), "--allow-import", "tests")
        said = done(server.nlac("up", *asked, "--listen", FIRST, "--serve", "orchestration"))
        assert f"nlac up --join http://{FIRST}:4217" in said and "nlac-orchestration@server" in said
        del variables[PREFECT]  # who joins needs no database of Prefect's
        for joining in [host.nlac("up", *asked, "--join", f"http://{FIRST}:4217") for host in (one, two)]:
            done(joining)

        (steer / "wait").write_text("bootstrap")
        iteration = server.nlac("iterate", "--config", str(config))
        wait_until(lambda: list(steer.glob("bootstrap@*")), 180, "a stage of the critic at work")
        (seen,) = steer.glob("bootstrap@*")
        lost, other = (one, two) if seen.name.endswith("@one") else (two, one)
        lost.kill()
        (steer / "wait").unlink()
        done(iteration)

        ends = dict(database.sql(OTHER_ENDS, "prefect"))
        assert list(ends) == ["bellman-targets-trial-0 Crashed"]
        assert str(ends["bellman-targets-trial-0 Crashed"]).startswith("its host is gone")
        assert (steer / f"bootstrap@{other.name}").exists()
        assert database.sql(TRACKED, "mlflow") == [(10,)], "eight stages, the iteration and the training run"
        ours = (PASSWORD, "pa%40ss%2Fplanted", variables[STACK_SECRET].partition(":")[2])
        seen_here = [
            data_root(data),
            *(Path(f"/proc/{host.init.pid}/root{host.private}") for host in (other, server)),
        ]
        for path in (path for folder in seen_here for path in folder.rglob("*") if path.is_file()):
            assert path.name == "profiles.toml" or not leaks(path.read_bytes(), *ours), path
        commands = [" ".join(process.cmdline()) for process in server.init.children(recursive=True)]
        assert any("server start" in command for command in commands)
        assert not leaks("\n".join(commands).encode(), *ours)
        for host in (other, server):
            done(host.nlac("down"))

    alone = {**os.environ, "NLAC_TEST_STEER": str(steer), ALLOW_IMPORT: "tests"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.reliability.tables",
        str(config),
        str(tmp_path / "undisturbed"),
        "1",
    ]
    subprocess.run(command, cwd=PROJECT_ROOT, env=alone, check=True)
    difference = compare(Store(data_root(data)), Store(tmp_path / "undisturbed"), "trial")
    assert difference.tables > 10 and not difference.differing, difference
