"""What survives the loss of Prefect's database, and what a forced iteration computes again."""

import shutil
from pathlib import Path

import pytest

from tasks.pipeline.registry import STAGES
from tests.support.stack import LocalStack

pytestmark = pytest.mark.server


@pytest.mark.long
def test_a_run_goes_on_after_prefects_database_is_lost(stack: LocalStack, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "trial.yaml"
    file.write_text(f"{stack.config.read_text()}\nalgorithm: rft\n")  # few stages
    options = ["--data", str(data), "--config", str(file), "--run", "kept"]

    def how(said: str) -> dict[str, str]:
        table = [line.split() for line in said.split("Iteration 0 of run 'kept'")[1].splitlines()]
        return {row[0]: row[-1] for row in table if row and row[0] in STAGES}

    first = how(stack.nlac("iterate", *options).stdout)
    assert first and set(first.values()) == {"computed"}
    shutil.rmtree(data / ".stack")
    again = how(stack.nlac("iterate", *options, "--iteration", "0").stdout)
    assert again == dict.fromkeys(first, "reused")


@pytest.mark.long
def test_a_forced_iteration_computes_all_again_and_its_retry_only_what_is_left(
    stack: LocalStack, steer: Path
) -> None:
    ask = {"config": str(stack.config), "run": "forced", "iteration": 0, "algorithm": "self_distillation"}
    assert stack.finish(stack.start("iteration", **ask))["state_type"] == "COMPLETED"

    def attempts() -> dict[str, int]:
        found = {stage: stack.store.committed("forced", stage, 0) for stage in STAGES}
        return {stage: made.manifest.attempt for stage, made in found.items() if made is not None}

    stages = list(attempts())
    broken = stages.index("critique")
    before = attempts()
    (steer / "break").write_text("evaluate")
    run = stack.start("iteration", **ask, force=True)
    assert stack.finish(run)["state_type"] == "FAILED"
    (steer / "break").unlink()
    assert stack.retry(run)["state_type"] == "COMPLETED"
    second = dict(stack.steps(run, 2, len(stages)))
    assert [second[s] for s in stages[:broken]] == ["Reused"] * broken
    assert attempts() == {stage: number + 1 for stage, number in before.items()}
