"""`nlac up`: what it starts and what it leaves alone. What `nlac down` leaves, conftest.py checks."""

import pytest

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
    caches = (stack.home / ".cache" / "huggingface", stack.home / ".cache" / "nlac")  # of models
    files = (p for p in stack.home.rglob("*") if p.is_file())
    outside = [p for p in files if not any(map(p.is_relative_to, caches))]
    assert outside == []
