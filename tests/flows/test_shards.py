"""A stage's shards as flow runs of their own, on two workers, one of them killed."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.stack.environment import client_environment
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Store
from tasks.pipeline.iterations import run_stages
from tasks.pipeline.registry import STAGES, stages_of
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until

POOL = "nlac-inference"


@contextmanager
def second_worker(stack: LocalStack) -> Iterator[None]:
    """A second worker of the inference pool, which takes one run at a time, as the stack's own does."""
    environment = {
        **stack.environment,
        **client_environment(stack.data, stack.api_url),
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--name", "second"]
    worker = subprocess.Popen(
        [*command, "--limit", "1"], cwd=PROJECT_ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: "second" in online(stack), 120, "a second worker")
        yield
    finally:
        worker.terminate()
        worker.wait(60)


def online(stack: LocalStack) -> set[str]:
    """Names of the pool's workers that are online."""
    workers = stack.api(f"/work_pools/{POOL}/workers/filter", {})
    return {worker["name"] for worker in workers if worker["status"] == "ONLINE"}


@pytest.mark.server
@pytest.mark.long
def test_an_iteration_deals_its_stages_out_and_a_killed_shard_is_run_again_alone(
    stack: LocalStack, steer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pools = "sharded", {"shared_gpu": False, "shards": 2}
    file = stack.config_with(tmp_path, run=run, algorithm="react", pools=pools)
    with second_worker(stack):
        (steer / "killed").write_text("policy")
        flow_run = stack.start("iteration", config=file, run=run, iteration=0)
        assert stack.finish(flow_run)["state_type"] == "COMPLETED"
    config = load_config(Path(file))
    stages = [name for name in stages_of(config, 0) if STAGES[name].item is not None]
    ended = Counter((child["name"], child["state"]["type"]) for child in stack.children(flow_run))
    crashed = [name for name, kind in ended if kind == "CRASHED"]
    assert len(crashed) == 1 and crashed[0].startswith(f"{stages[0]}-{run}-0-"), ended
    assert ended[(crashed[0], "COMPLETED")] == 1
    for stage in stages:
        for name in (f"{stage}-{run}-0", f"{stage}-{run}-0-1of2", f"{stage}-{run}-0-2of2"):
            assert ended[(name, "COMPLETED")] == 1, (name, ended)
    monkeypatch.setenv("NLAC_TEST_STEER", str(steer))
    alone = config.model_copy(update={"pools": config.pools.model_copy(update={"shards": 1})})
    plain, sharded = Store(tmp_path / "plain"), stack.store
    asyncio.run(run_stages(plain, alone, stages_of(alone, 0)))
    for stage in stages:
        both = [store.committed(run, stage, 0) for store in (plain, sharded)]
        one, other = ({n: t.digest for n, t in made.manifest.tables.items()} for made in both if made)
        assert one == other, stage
    assert not list(sharded.run_dir(run).glob(".shards/*"))
