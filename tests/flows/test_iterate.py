"""`nlac iterate` (`make iteration`) interrupted by the user. test_iteration.py has its end when a stage fails."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.stack.processes import marked_processes
from flows.stack.record import read_stack
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.pipeline.iterations import frozen_config
from tasks.pipeline.registry import stages_of
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def test_iterate_computes_in_one_process_and_goes_on_after_a_failure_and_the_loss_of_prefects_database(
    stack: LocalStack, steer: Path, tmp_path: Path
) -> None:
    data, file = tmp_path / "data", stack.config_with(tmp_path, algorithm="self_distillation")
    options = ("iterate", "--data", str(data), "--config", file)
    (steer / "tired").write_text("evaluate 1000")
    failed = stack.nlac(*options, check=False)
    assert failed.returncode == 1 and "critique-trial-0: critique ended Failed" in failed.stdout
    assert "flow-run retry" not in failed.stdout, "no worker could"
    assert failed.stdout.rstrip().endswith(f"iterate {' '.join(options[1:])}")
    (steer / "tired").unlink()
    shutil.rmtree(data / ".stack")
    said = stack.nlac(*options).stdout
    assert "computed" in said and "reused" in said and "Stopping the local stack" in said
    store = Store(data)
    config = frozen_config(store, "trial", 0)
    assert config is not None
    stages = list(stages_of(config, 0))
    table = [line.split() for line in said.split("Iteration 0 of run 'trial'")[1].splitlines()]
    how, broken = {row[0]: row[-1] for row in table if row and row[0] in stages}, stages.index("critique")
    assert how == {s: "reused" if s in stages[:broken] else "computed" for s in stages}
    made = [store.committed("trial", stage, 0) for stage in stages]
    children = {done.manifest.prefect_flow_run_id for done in made if done is not None}
    assert len(children) == len(made) and None not in children, "each stage is a flow run of its own"
    logs = {log.stem for log in (data / ".stack" / "logs").iterdir()}
    assert logs == {"iteration", "provision", "server", "supervisor"}, "no worker was started"


@pytest.mark.long
def test_an_interrupt_stops_all_that_iterate_started(stack: LocalStack, steer: Path, tmp_path: Path) -> None:
    (steer / "wait").touch()
    (steer / "child").touch()
    data = tmp_path / "data"
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "iterate",
        "--data",
        str(data),
        "--config",
        str(stack.config),
    ]
    with (tmp_path / "said").open("w") as said:
        iterate = subprocess.Popen(
            command, cwd=PROJECT_ROOT, env=stack.environment, stdout=said, stderr=said, start_new_session=True
        )
    wait_until(lambda: (steer / "child-pid").exists(), 180, "a request under way")
    second = read_stack(data)
    assert second is not None and second.port != read_stack(stack.data).port  # type: ignore[union-attr]
    assert marked_processes(data) != []
    os.killpg(iterate.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
    assert iterate.wait(60) != 0
    assert marked_processes(data) == []
    assert read_stack(data) is None
    assert read_stack(stack.data) is not None, "the other stack is untouched"
    assert "Stopping the local stack" in (tmp_path / "said").read_text()
