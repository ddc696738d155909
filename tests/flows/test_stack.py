"""`nlac up`: what it starts and what it leaves alone. What `nlac down` leaves, conftest.py checks."""

import subprocess
import sys

import pytest

from flows.stack.environment import profiles_path
from flows.stack.private import stack_secret
from flows.stack.processes import marked_processes
from schemas.load import PROJECT_ROOT
from tasks.pipeline.registry import STAGES
from tests.support.stack import LocalStack

pytestmark = pytest.mark.server


def test_up_names_what_it_started_and_how_this_shell_reaches_it(stack: LocalStack) -> None:
    for expected in (stack.api_url, str(stack.data), str(stack.data / ".stack" / "prefect")):
        assert expected in stack.up_said
    assert f"export PREFECT_API_URL={stack.api_url}" in stack.up_said
    assert f"secret        {profiles_path(stack.data)}" in stack.up_said
    assert stack_secret(stack.data).partition(":")[2] not in stack.up_said


def test_what_up_printed_is_all_that_plain_prefect_commands_need(stack: LocalStack) -> None:
    exports = [line for line in stack.up_said.splitlines() if line.startswith("export ")]
    command = "\n".join([*exports, f"{sys.executable} -m prefect work-pool inspect nlac-orchestration"])
    done = subprocess.run(
        ["bash", "-c", command], cwd=PROJECT_ROOT, env=stack.environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "nlac-orchestration" in done.stdout, done.stdout + done.stderr


def test_a_second_up_says_that_it_is_up(stack: LocalStack) -> None:
    assert "up already" in stack.nlac("up", "--data", str(stack.data)).stdout


def test_every_deployment_is_there_on_its_pool(stack: LocalStack) -> None:
    pools = {d["name"]: d["work_pool_name"] for d in stack.api("/deployments/filter", {})}
    stages = {name: f"nlac-{stage.pool}" for name, stage in STAGES.items()}
    assert pools == {"iteration": "nlac-orchestration", "training": "nlac-orchestration", **stages}
    limits = {p["name"]: p["concurrency_limit"] for p in stack.api("/work_pools/filter", {})}
    assert limits == dict.fromkeys(["nlac-orchestration", "nlac-inference", "nlac-training"])
    commands = [" ".join(process.cmdline()) for process in marked_processes(stack.data)]
    one_at_a_time = {c.split("--pool ")[1].split()[0] for c in commands if c.endswith("--limit 1")}
    assert one_at_a_time == {"nlac-inference", "nlac-training"}


def test_nothing_is_written_in_the_users_home(stack: LocalStack) -> None:
    caches = (stack.home / ".cache" / "huggingface", stack.home / ".cache" / "nlac")  # of models
    files = (p for p in stack.home.rglob("*") if p.is_file())
    outside = [p for p in files if not any(map(p.is_relative_to, caches))]
    assert outside == []
