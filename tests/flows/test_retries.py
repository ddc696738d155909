"""Which failed stages an iteration runs again, and how long it waits."""

from typing import Any

import pytest
from prefect.states import Failed

from flows.deployments.iteration import STEPS, ChildFailed, may_pass, retried
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
def test_an_iteration_runs_a_stage_again_whose_engine_failed_for_a_while(stack: LocalStack) -> None:
    (stack.steer / "tired").write_text("evaluate 4")
    run = stack.start("iteration", config=str(stack.config), run="tired", iteration=0)
    assert stack.finish(run)["state_type"] == "COMPLETED"
    critiques = [child for child in stack.children(run) if child["name"].startswith("critique")]
    assert [child["state"]["name"] for child in critiques] == ["Interrupted", "Completed"]
    assert "failed 4 of 4 critiques" in critiques[0]["state"]["message"]
