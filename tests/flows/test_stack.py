"""`nlac up` and `nlac down`: what is started, what it leaves alone, and that nothing stays."""

import socket
from pathlib import Path

import pytest
import yaml

from flows.stack.control import read_stack
from flows.stack.processes import marked_processes
from schemas.load import load_config
from tasks.engines.vllm import leases
from tasks.engines.vllm.servers import server_dir
from tasks.pipeline.registry import STAGES
from tests.support.stack import LocalStack

pytestmark = pytest.mark.server


def test_up_names_what_it_started_and_how_this_shell_reaches_it(stack: LocalStack) -> None:
    for expected in (stack.api_url, str(stack.data), str(stack.data / ".stack" / "prefect")):
        assert expected in stack.up_said
    assert f"export PREFECT_API_URL={stack.api_url}" in stack.up_said


def test_a_second_up_says_that_it_is_up(stack: LocalStack) -> None:
    assert "up already" in stack.nlac("up", "--data", str(stack.data)).stdout


def test_every_deployment_is_there_on_its_pool(stack: LocalStack) -> None:
    pools = {d["name"]: d["work_pool_name"] for d in stack.api("/deployments/filter", {})}
    stages = {name: f"nlac-{stage.pool}" for name, stage in STAGES.items()}
    assert pools == {"iteration": "nlac-orchestration", "training": "nlac-orchestration", **stages}
    limits = {p["name"]: p["concurrency_limit"] for p in stack.api("/work_pools/filter", {})}
    assert limits == {"nlac-orchestration": None, "nlac-inference": 1, "nlac-training": 1}


def test_nothing_is_written_in_the_users_home(stack: LocalStack) -> None:
    outside = [p for p in stack.home.rglob("*") if p.is_file() and ".cache/huggingface" not in str(p)]
    assert outside == []


def test_a_server_of_our_own_is_held_by_the_stack_whose_iteration_needs_it(
    stack: LocalStack, tmp_path: Path
) -> None:
    """Nobody asks its engine here, so nothing is started; the lease is what would keep it for the next iteration."""
    content = yaml.safe_load(stack.config.read_text())
    content["engines"]["served"] = {"backend": "openai", "serve": {}}
    file = tmp_path / "served.yaml"
    file.write_text(yaml.safe_dump(content | {"run": "served", "algorithm": "react"}))
    assert stack.finish(stack.start("iteration", config=str(file)))["state_type"] == "COMPLETED"
    config = load_config(str(file))
    (lease,) = leases.live(server_dir(config.engines["served"], config.model, stack.store.cache_dir))
    running = read_stack(stack.data)
    assert running is not None and lease.name.startswith(f"stack-{running.pid}-")


def test_down_leaves_no_process_and_frees_the_port(tmp_path: Path, stack: LocalStack) -> None:
    data = tmp_path / "data"
    stack.nlac("up", "--data", str(data))
    second = read_stack(data)
    assert second is not None
    assert second.port != read_stack(stack.data).port  # type: ignore[union-attr]
    assert marked_processes(data) != []
    assert "is down" in stack.nlac("down", "--data", str(data)).stdout
    assert marked_processes(data) == []
    assert read_stack(data) is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", second.port)) != 0
    assert "was not up" in stack.nlac("down", "--data", str(data)).stdout
    assert read_stack(stack.data) is not None, "the other stack is untouched"
