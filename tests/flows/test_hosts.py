"""Two worker hosts share an iteration's stages, and one of them dies in the middle.

Each host has a network and a file system of its own. What all share are Prefect's server and MLflow's records, which
PostgreSQL keeps, and the data root, which is a bucket. They read program, model and configuration from the machine.
"""

import os
import re
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
from tests.support.s3_server import SECRET, URL, serving_s3
from tests.support.stack import CONFIG
from tests.support.waiting import wait_until

OTHER_ENDS = """
    select flow_run.name || ' ' || state.name, state.message
    from flow_run join flow_run_state state on state.id = flow_run.state_id where state.name <> 'Completed'
"""
SHARDS = "select count(*) from flow_run where name like '%of2'"
TRACKED = "select count(*) from runs where status = 'FINISHED' and artifact_uri like 'mlflow-artifacts:/%'"
RULES = {"rules": {"backend": "scripted", "rules": "tests.support.hosts_rules:located"}}


def environment(steer: Path) -> dict[str, str]:
    """The variables of all hosts: the bucket, and the secret of the stack; no database."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    ours = {
        "NLAC_DATA": URL,
        STACK_SECRET: f"nlac:{secrets.token_urlsafe(24)}",
        "NLAC_TEST_STEER": str(steer),
        "PYTHONPATH": str(PROJECT_ROOT),
        ALLOW_IMPORT: "tests",
    }
    return {**kept, **ours}


@pytest.mark.long
def test_hosts_that_share_postgres_and_a_bucket_alone_share_stages_and_one_that_dies_costs_its_shard(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := lacking():
        pytest.skip(reason)
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    pytest.importorskip("obstore", reason="the extra [s3] is not installed")
    steer, config, plain = tmp_path / "steer", tmp_path / "hosts.yaml", tmp_path / "plain.yaml"
    steer.mkdir()
    model = {
        "name": str(tiny_checkpoint),
        "dtype": "float32",
        "context_length": 4096,
        "lora": {"r": 2, "alpha": 4},
    }
    told = {**CONFIG, "run": "trial", "model": model, "engines": RULES, "algorithm": "rft"}
    plain.write_text(yaml.safe_dump(told))
    config.write_text(yaml.safe_dump({**told, "pools": {"shared_gpu": False, "shards": 2}}))
    variables = environment(steer)

    with (
        hosts(["server", "one", "two"], tmp_path, variables) as (server, one, two),
        postgres(FIRST, ("ip", "netns", "exec", server.network)) as database,
        server.listening(FIRST) as listening,
        serving_s3(listening) as bucket,
    ):
        variables |= bucket.environment
        variables["AWS_ENDPOINT_URL"] = f"http://{FIRST}:{listening.getsockname()[1]}"
        variables |= {MLFLOW: database.create("mlflow"), PREFECT: database.create("prefect")}
        asked = ("--config", str(config), "--allow-import", "tests")
        said = done(server.nlac("up", *asked, "--listen", FIRST, "--serve", "orchestration"))
        assert f"nlac up --join http://{FIRST}:4217" in said and "nlac-orchestration@server" in said
        del variables[PREFECT]  # who joins needs no database of Prefect's
        for joining in [host.nlac("up", *asked, "--join", f"http://{FIRST}:4217") for host in (one, two)]:
            done(joining)

        (steer / "wait").write_text("policy")
        iteration = server.nlac("iterate", "--config", str(config))
        wait_until(lambda: len(list(steer.glob("policy@*"))) == 2, 180, "both hosts at work on one stage")
        one.kill()
        (steer / "wait").unlink()
        done(iteration)

        ends = dict(database.sql(OTHER_ENDS, "prefect"))
        assert len(ends) == 1 and re.fullmatch(r"rollout-trial-0-[12]of2 Crashed", *ends), ends
        assert str(*ends.values()).startswith("its host is gone")
        assert database.sql(SHARDS, "prefect") == [(5,)], "two of each of two stages, and the lost one again"
        assert database.sql(TRACKED, "mlflow") == [(5,)], "three stages, the iteration and the training run"
        ours = (PASSWORD, "pa%40ss%2Fplanted", variables[STACK_SECRET].partition(":")[2], SECRET)
        assert not [key for key, one in bucket.objects.items() if leaks(one.content, *ours)]
        private = [Path(f"/proc/{host.init.pid}/root{host.private}") for host in (two, server)]
        for path in (path for folder in private for path in folder.rglob("*") if path.is_file()):
            assert path.name == "profiles.toml" or not leaks(path.read_bytes(), *ours), path
        commands = [" ".join(process.cmdline()) for process in server.init.children(recursive=True)]
        assert any("server start" in command for command in commands)
        assert not leaks("\n".join(commands).encode(), *ours)
        for host in (two, server):
            done(host.nlac("down"))

        undisturbed = Store(tmp_path / "undisturbed")
        alone = ["-m", "benchmarks.reliability.tables", str(plain), str(undisturbed.root), "1"]
        own = {**os.environ, "NLAC_TEST_STEER": str(steer), ALLOW_IMPORT: "tests"}
        subprocess.run([sys.executable, *alone], cwd=PROJECT_ROOT, env=own, check=True)
        for name, value in {**bucket.environment, "NLAC_MIRROR": str(tmp_path / "reader")}.items():
            monkeypatch.setenv(name, value)
        difference = compare(Store(data_root(URL)), undisturbed, "trial")
        assert difference.tables == 9 and not difference.differing, difference
