"""What a forced iteration computes again, and what its retry does."""

from pathlib import Path

import pytest

from tasks.pipeline.registry import STAGES
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until


@pytest.mark.server
@pytest.mark.long
def test_a_forced_iteration_computes_all_again_and_its_retry_only_what_is_left(
    stack: LocalStack, steer: Path, tmp_path: Path
) -> None:
    config = stack.config_with(tmp_path, algorithm="rft", faults={"retries": 0})
    ask = {"config": config, "run": "forced", "iteration": 0}
    assert stack.finish(stack.start("iteration", **ask))["state_type"] == "COMPLETED"

    def attempts() -> dict[str, int]:
        found = {stage: stack.store.committed("forced", stage, 0) for stage in STAGES}
        return {stage: made.manifest.attempt for stage, made in found.items() if made is not None}

    before = attempts()
    *kept, broken = before
    run = stack.start("iteration", **ask, force=True)
    wait_until(lambda: attempts()[kept[0]] > before[kept[0]], 180, f"the second {kept[0]}", every=0.5)
    (steer / "break").write_text("policy")  # who plays in the last stage too; one that trains lies between
    assert stack.finish(run)["state_type"] == "FAILED"
    (steer / "break").unlink()
    assert stack.retry(run)["state_type"] == "COMPLETED"
    assert dict(stack.steps(run, 2, len(before))) == {**dict.fromkeys(kept, "Reused"), broken: "Completed"}
    assert attempts() == {stage: number + 1 for stage, number in before.items()}
