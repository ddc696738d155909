"""Which failed stages an iteration runs again, and how long it waits."""

from pathlib import Path
from typing import Any

import pytest
from prefect.states import Failed

from flows.deployments.dispatch import ChildFailed, may_pass
from flows.deployments.iteration import STEPS, retried
from schemas.config import FaultsSection
from tasks.runtime.stage import StageFailed
from tests.support.stack import LocalStack


def test_only_a_fault_that_may_pass_is_tried_again_and_each_wait_is_twice_the_last() -> None:
    step: Any = STEPS["rollout"]
    assert may_pass(step, step, Failed(data=ChildFailed("the server has ended", interrupted=True)))
    assert not may_pass(step, step, Failed(data=ChildFailed("nothing to train on")))
    assert not may_pass(step, step, Failed(data=StageFailed("nothing to train on")))
    step = retried("rollout", FaultsSection(retries=3, retry_seconds=30))
    assert (step.retries, step.retry_delay_seconds) == (3, [30, 60, 120])
    assert step.retry_condition_fn is may_pass


@pytest.mark.server
def test_an_iteration_runs_a_stage_again_whose_process_died_and_whose_engine_failed_for_a_while(
    stack: LocalStack, steer: Path, tmp_path: Path
) -> None:
    (steer / "killed").write_text("policy")
    (steer / "tired").write_text("policy 3")
    # No stage waits for the GPU, which a dead process holds for a minute.
    pools = {"shared_gpu": False}
    config = stack.config_with(tmp_path, algorithm="react", evaluation={"episodes": 3}, pools=pools)
    run = stack.start("iteration", config=config, run="tired", iteration=0)
    assert stack.finish(run)["state_type"] == "COMPLETED"
    states = [child["state"] for child in stack.children(run)]
    assert [state["name"] for state in states] == ["Crashed", "Interrupted", "Completed"]
    assert "failed 3 of 3 episodes" in states[1]["message"]
