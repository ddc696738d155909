"""An iteration through a real server and real workers: resume, reuse, locks, cancelling, a killed process."""

import json
import os
import re
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
import yaml

from flows.stack import gpu_limit
from flows.stack.environment import STACK_MARK
from flows.stack.record import read_stack
from schemas.load import PROJECT_ROOT, load_config
from tasks.algorithms import ALGORITHMS
from tasks.engines.vllm import leases
from tasks.engines.vllm.server_records import server_dir
from tasks.pipeline.iterations import frozen_config
from tests.support.stack import LocalStack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def gpu_holders(stack: LocalStack) -> int:
    return int(stack.api(f"/v2/concurrency_limits/{gpu_limit()}")["active_slots"])


def flow_processes(stack: LocalStack) -> list[psutil.Process]:
    marked = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(STACK_MARK) == str(stack.data)
            if ours and "prefect.engine" in process.cmdline():
                marked.append(process)
        except psutil.Error:
            continue
    return marked


def tracked(stack: LocalStack, status: str) -> set[tuple[str, str, str | None]]:
    """Stage, MLflow run and Prefect run of what MLflow has with a status of run 'trial'."""
    query = """
        select s.value, r.run_uuid, p.value from runs r
        join experiments e on e.experiment_id = r.experiment_id and e.name = 'trial'
        join tags s on s.run_uuid = r.run_uuid and s.key = 'nlac.stage'
        left join tags p on p.run_uuid = r.run_uuid and p.key = 'nlac.prefect_flow_run_id'
        where r.status = ?"""
    with closing(sqlite3.connect(stack.data / ".mlflow" / "mlflow.db")) as database:
        return set(database.execute(query, [status]))


def mlflow_says(query: str, stack: LocalStack, beginning: str) -> bool:
    """Whether a value that the query finds in MLflow's database begins so."""
    with closing(sqlite3.connect(stack.data / ".mlflow" / "mlflow.db")) as database:
        return any(str(value).startswith(beginning) for (value,) in database.execute(query))


def test_a_failed_stage_is_named_and_it_and_later_ones_alone_run_again_on_retry(
    stack: LocalStack, steer: Path, tmp_path: Path
) -> None:
    (steer / "break").write_text("evaluate")
    algorithm = "self_distillation"  # of those with stages before and after critique the one with the fewest
    file = stack.config_with(tmp_path, algorithm=algorithm, faults={"retries": 0})
    options = ["--data", str(stack.data), "--config", file, "--run", "trial"]
    done = stack.nlac("iterate", *options, check=False)
    assert done.returncode == 1
    assert "'Failed at critique: " in done.stdout, "what --watch of Prefect shows"
    assert "critique-trial-0: critique ended Crashed" in done.stdout
    assert f"iterate {' '.join(options)}" in done.stdout
    assert read_stack(stack.data) is not None, "a stack that was up before stays up"
    run = done.stdout.split("prefect flow-run retry ")[1].split()[0]
    failed = stack.run(run)
    assert failed["state_type"] == "FAILED"
    assert "critique" in failed["state"]["message"]
    assert f"prefect flow-run retry {run}" in failed["state"]["message"]
    stages, broken = list(ALGORITHMS[algorithm].stages), "critique"
    before, after = stages[: stages.index(broken)], stages[stages.index(broken) + 1 :]
    assert before and after
    assert [name for name, _ in stack.steps(run, 1, len(before) + 1)] == [*before, broken]
    folders = {stage: stack.store.committed("trial", stage, 0) for stage in before}
    assert stack.store.committed("trial", broken, 0) is None

    (steer / "break").unlink()
    assert stack.retry(run)["state_type"] == "COMPLETED"
    second = dict(stack.steps(run, 2, len(stages)))
    assert second == {**dict.fromkeys(before, "Reused"), **dict.fromkeys([broken, *after], "Completed")}
    dispatched = [child["name"].removesuffix("-trial-0") for child in stack.children(run)]
    assert dispatched == [*before, broken, broken, *after]
    assert {stage: stack.store.committed("trial", stage, 0) for stage in before} == folders
    manifests = {stage: stack.store.committed("trial", stage, 0).manifest for stage in stages}  # type: ignore[union-attr]
    assert tracked(stack, "FINISHED") == {
        (stage, m.mlflow_run_id, m.prefect_flow_run_id) for stage, m in manifests.items()
    }
    assert [stage for stage, _, _ in tracked(stack, "FAILED")] == [broken]

    named = stack.run(run)
    assert named["name"] == "iteration-trial-0" and {"run:trial", "iteration:0"} <= set(named["tags"])
    for child in stack.children(run):
        assert f"stage:{child['name'].removesuffix('-trial-0')}" in child["tags"]
    ids = [run, *(child["id"] for child in stack.children(run))]
    wanted = {"artifacts": {"flow_run_id": {"any_": ids}}}
    shown = {one["key"]: one for one in stack.api("/artifacts/filter", wanted)}
    rate = f"success: {manifests['evaluation'].metrics['success_rate']:.3f}"
    pages = (shown["evaluation"]["data"], shown["evaluation"]["description"], shown["report"]["data"])
    assert all(rate in page.replace("\\", "") for page in pages)
    report = shown["report"]["data"]
    assert report.startswith("## Iteration 0 of run trial")
    assert mlflow_says("select value from tags where key = 'mlflow.note.content'", stack, report[:40])
    assert mlflow_says("select value from trace_tags where key = 'nlac.split'", stack, "eval")
    logs = stack.api("/logs/filter", {"logs": {"flow_run_id": {"any_": [stack.children(run)[-1]["id"]]}}})
    assert any(line["message"].startswith("done: ") for line in logs)

    again = stack.nlac("iterate", "--data", str(stack.data), "--run", "trial", "--iteration", "0").stdout
    table = [line.split() for line in again.split("Iteration 0 of run 'trial'")[1].splitlines()]
    assert [row[0] for row in table if row[-1:] == ["reused"]] == stages
    for expected in (
        "success: ",
        f"The data lies in {stack.data / 'trial'}",
        "mlflow-ui",
        "select run, iteration",
        stack.ui_url,
    ):
        assert expected in again
    alone = stack.finish(stack.start(before[0], run="trial", iteration=0))
    assert alone["state"]["name"] == "Reused"

    # The stack's lease keeps a server of our own for the next iteration.
    own = load_config(str(stack.config))
    (lease,) = leases.live(server_dir(own.engines["served"], own.model, stack.store.cache_dir))
    running = read_stack(stack.data)
    assert running is not None and lease.name.startswith(f"stack-{running.pid}-")


def test_a_second_writer_of_a_run_is_refused_by_name(stack: LocalStack) -> None:
    asked = json.dumps({"config": str(stack.config), "run": "locked", "iteration": 0})
    with stack.store.lock("locked", "a test that holds it"):
        said = stack.prefect("deployment", "run", "nlac/rollout", "--params", asked)  # as a user starts it
        refused = stack.finish(said.split("UUID:")[1].split()[0])
    assert refused["state_type"] == "FAILED"
    assert "run 'locked' is being written by a test that holds it" in refused["state"]["message"]


@pytest.mark.parametrize("here", [False, True])
def test_cancelling_an_iteration_ends_its_child_and_frees_what_it_held(
    stack: LocalStack, steer: Path, here: bool
) -> None:
    (steer / "wait").touch()
    (steer / "child").touch()
    name = f"cancelled-{'here' if here else 'there'}"
    run = stack.start("iteration", config=str(stack.config), run=name, here=here)
    wait_until(lambda: (steer / "child-pid").exists(), 90, "a request under way")
    assert gpu_holders(stack) == 1
    stack.prefect("flow-run", "cancel", run)
    assert stack.finish(run, 60)["state_type"] == "CANCELLED"
    assert [child["state_type"] for child in stack.children(run)] == ["CANCELLED"]
    assert flow_processes(stack) == []
    assert gpu_holders(stack) == 0
    with stack.store.lock(name, "this test"):
        assert stack.store.committed(name, "rollout", 0) is None
    left_behind = int((steer / "child-pid").read_text())
    wait_until(lambda: not psutil.pid_exists(left_behind), 30, "the end of the stage's own child process")


@pytest.mark.long  # the GPU's lease of a killed process runs for a minute
def test_a_killed_stage_leaves_nothing_visible_and_can_be_run_again(stack: LocalStack, steer: Path) -> None:
    (steer / "wait").touch()
    (steer / "child").touch()
    run = stack.start("rollout", config=str(stack.config), run="killed", iteration=0)
    wait_until(lambda: (steer / "child-pid").exists(), 90, "a request under way")
    os.kill(int(stack.run(run)["infrastructure_pid"].split(":")[-1]), signal.SIGKILL)
    assert stack.finish(run, 60)["state_type"] == "CRASHED"
    assert stack.store.committed("killed", "rollout", 0) is None
    assert list(stack.data.glob("killed/rollout/**/*.parquet")) == []
    left_behind = int((steer / "child-pid").read_text())
    wait_until(lambda: not psutil.pid_exists(left_behind), 30, "the end of the stage's own child process")
    (steer / "wait").unlink()
    assert stack.retry(run)["state_type"] == "COMPLETED"
    committed = stack.store.committed("killed", "rollout", 0)
    assert committed is not None
    assert list((stack.data / "killed" / ".staging").iterdir()) == []


def test_files_and_modules_are_found_from_the_folder_in_which_the_stack_was_started(
    stack: LocalStack,
) -> None:
    page = (PROJECT_ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (stack.stands / "nim.py").write_text(code)
    config = yaml.safe_load(stack.config.read_text())
    config["roles"]["policy"]["structured"] = False  # the rules play another game
    shutil.copytree(config["model"]["name"], stack.stands / "own_model")
    config["model"]["name"] = "./own_model"
    (stack.stands / "nim.yaml").write_text(yaml.safe_dump({**config, "environment": {"name": "nim:Nim"}}))
    said = stack.prefect(
        "deployment", "run", "nlac/rollout", "-p", "config=nim.yaml", "-p", "run=nim", "-p", "iteration=0"
    )  # in another folder than nlac up
    done = stack.finish(said.split("UUID:")[1].split()[0])
    assert done["state_type"] == "COMPLETED", done["state"]
    committed = stack.store.committed("nim", "rollout", 0)
    assert committed is not None and set(committed.scan("episodes").collect()["environment"]) == {"nim"}


@pytest.mark.parametrize("parameters", [{"iteration": -1}, {"run": "../elsewhere"}])
def test_bad_parameters_are_refused_before_anything_runs(
    stack: LocalStack, parameters: dict[str, object]
) -> None:
    with pytest.raises(HTTPError) as refused:
        stack.start("rollout", **parameters)
    assert next(iter(parameters)) in refused.value.read().decode()


def test_a_misspelled_parameter_is_refused_by_the_plain_command(stack: LocalStack) -> None:
    with pytest.raises(AssertionError, match="iteratoin"):
        stack.prefect("deployment", "run", "nlac/rollout", "--param", "iteratoin=3")


@pytest.mark.long
def test_training_chains_iterations_goes_on_from_finished_ones_keeps_its_algorithm_and_stops_at_the_peak(
    stack: LocalStack, tmp_path: Path
) -> None:
    patient = stack.config_with(tmp_path, evaluation={"episodes": 2, "patience": 1})
    chain = {"config": patient, "run": "chained", "algorithm": "react"}  # one stage
    run = stack.start("training", iterations=1, **chain)
    assert stack.finish(run)["state_type"] == "COMPLETED"
    again = stack.start("training", iterations=4, **chain)
    done = stack.finish(again)
    assert done["state_type"] == "COMPLETED"
    assert [child["name"] for child in stack.children(again)] == ["iteration-chained-1"]
    # The same policy twice: no evaluation is better than the first.
    assert done["state"]["message"].startswith("stopped before iteration 2: evaluation.patience 1")
    assert stack.store.iterations("chained") == [0, 1]
    for iteration in (0, 1):
        evaluated = stack.store.committed("chained", "evaluation", iteration)
        assert evaluated is not None and evaluated.manifest.tables["evaluations"].rows == 2, "one a split"
    frozen = frozen_config(stack.store, "chained", 1)
    assert frozen is not None and frozen.algorithm == "react"
    assert stack.store.committed("chained", "rollout", 1) is None
    other = {"config": str(stack.config), "run": "chained", "algorithm": "rft"}
    refused = stack.finish(stack.start("training", iterations=3, **other))
    assert refused["state_type"] == "FAILED"
    assert "holds iterations of algorithm react" in refused["state"]["message"]
    with pytest.raises(HTTPError):
        stack.start("iteration", algorithm="sarsa")
