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


def two_gpus(stack: LocalStack, folder: Path) -> str:
    """A configuration under which no stage waits for the GPU, which a dead process holds for a minute."""
    file = folder / "trial.yaml"
    file.write_text(f"{stack.config.read_text()}\npools: {{shared_gpu: false}}\n")
    return str(file)


@pytest.mark.server
def test_an_iteration_runs_a_stage_again_whose_engine_failed_for_a_while_or_whose_process_died(
    stack: LocalStack, steer: Path, tmp_path: Path
) -> None:
    (steer / "tired").write_text("evaluate 4")
    (steer / "killed").write_text("refine")
    config = two_gpus(stack, tmp_path)
    run = stack.start("iteration", config=config, run="tired", iteration=0, algorithm="self_distillation")
    assert stack.finish(run, seconds=600)["state_type"] == "COMPLETED"  # two stages are computed twice
    children = stack.children(run)

    def tries(stage: str) -> list[dict[str, Any]]:
        return [child["state"] for child in children if child["name"].startswith(stage)]

    assert [state["name"] for state in tries("critique")] == ["Interrupted", "Completed"]
    assert "failed 4 of 4 critiques" in tries("critique")[0]["message"]
    assert [state["name"] for state in tries("refinement")] == ["Crashed", "Completed"]
