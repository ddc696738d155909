"""`nlac status` and `nlac report`, over what running, stopped and finished runs leave behind."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.cli import status as command
from flows.cli.standing import standing
from flows.cli.standing_models import FlowRun, RunStanding
from flows.deployments.progress import ProgressFile
from flows.stack.private import stack_secret
from flows.stack.record import Stack
from schemas.config import Config, ModelSection
from schemas.manifest import RoleCost, StageKey
from schemas.shards import Shard, ShardManifest
from storage.files import make_folder, replace_text
from storage.shards import Shards
from storage.store import Store
from tasks.pipeline.iterations import finish_iteration
from tasks.pipeline.registry import stages_of
from tasks.runtime.progress import ProgressState
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.local_http import answering
from tests.support.rows import episode, evaluation, transitions
from tests.support.stopped import begin, fail

CONFIG = Config(run="trial", model=ModelSection(dtype="float32"))
STAGES = stages_of(CONFIG, 0)


def look(
    store: Store, flow_runs: list[FlowRun] | None = None, failed: list[FlowRun] | None = None
) -> RunStanding:
    found = standing(store, "trial", flow_runs or [], failed or [], "nlac iterate --run trial")
    assert found is not None
    return found


@pytest.fixture
def running(store: Store) -> Store:
    """Iteration 1 is in its third stage; iteration 0 is finished."""
    begin(store, CONFIG, 0, STAGES)
    finish_iteration(store, "trial", 0)
    begin(store, CONFIG, 1, [STAGES[0]])
    played = episode(status="engine_error", iteration=1)
    commit_rows(store, STAGES[1], 1, {"episodes": [played], "transitions": transitions(episode(iteration=1))})
    note = {"holder": "an iteration of a test", "pid": os.getpid()}
    replace_text(store.run_dir("trial") / ".lock.json", json.dumps(note))
    costs = {"correct": RoleCost(texts=4, completion_tokens=40, seconds=8.0, failed=1)}
    state = ProgressState(STAGES[2], 4, 16, "labels", 8.0, 0.5, costs, {"RateLimitError": 3})
    ProgressFile(1, state).write(store.root, "trial")
    return store


def test_a_running_stage_has_items_rate_loss_costs_faults_and_the_time_left(running: Store) -> None:
    training = FlowRun(id="1", name="training-trial", parameters={"iterations": 4, "run": "trial"})
    found = look(running, [training])
    assert (found.state, found.holder, found.iteration) == ("running", "an iteration of a test", 1)
    stage = found.stage
    assert stage is not None and stage.progress is not None and stage.stage == STAGES[2]
    assert (stage.progress.done, stage.progress.total) == (4, 16)
    assert stage.seconds_left is not None and 24 <= stage.seconds_left < 60, "at the rate so far"
    waiting = len(STAGES) - 3
    assert found.seconds_left == pytest.approx(stage.seconds_left + 1.5 * waiting)
    assert found.last_iteration == 3
    assert found.run_seconds_left == pytest.approx(found.seconds_left + 2 * 1.5 * len(STAGES))  # type: ignore[operator]
    assert found.loss == 0.5 and found.faults == {"RateLimitError": 3}
    assert found.roles["correct"].failed == 1 and found.roles["correct"].seconds == 8.0
    assert found.rows == {"episodes engine_error": 1}
    said = nlac(running, "status").stdout
    for part in (
        "run 'trial', iteration 1: running, by an iteration of a test", "4/16 labels", "loss: 0.5000",
        "3 RateLimitError", "4 texts, 0 scored, 0 tokens read, 40 written, 8.0 s", "1 episodes engine_error",
        "stack: not up",
    ):  # fmt: skip
        assert part in said, said
    assert "WARNING" not in said


def test_shards_are_done_running_or_late_by_twice_the_median_of_those_done(store: Store) -> None:
    config = CONFIG.model_copy(update={"pools": CONFIG.pools.model_copy(update={"shards": 6})})
    begin(store, config, 0)
    note = {"holder": "an iteration of a test", "pid": os.getpid()}
    replace_text(store.run_dir("trial") / ".lock.json", json.dumps(note))
    key = StageKey(stage="rollout", run="trial", iteration=0)
    for number, seconds in ((1, 90.0), (4, 110.0)):
        shard = Shard(number=number, count=6)
        manifest = ShardManifest(
            key=key, folder="0" * 12, shard=shard, files=[], items=5, faults=0, roles={}, tokens=0,
            started_at="2026-01-01T00:00:00+00:00", seconds=seconds, machine="test",
        )  # fmt: skip
        with store.staging("trial") as folder:
            Shards(store, key, "0" * 12, 6).commit(folder, manifest)
    now = time.time()
    runs = [
        FlowRun(id=str(n), name=f"rollout-trial-0-{n}of6", start_time=datetime.fromtimestamp(now - ago, UTC))
        for n, ago in ((2, 150), (3, 210))
    ]
    runs.append(FlowRun(id="5", name="rollout-trial-0-5of6"))  # scheduled
    state = ProgressState("rollout.0006-of-0006", 2, 5, "episodes", 30.0)
    ProgressFile(0, state).write(store.root, "trial")
    stage = look(store, runs).stage
    assert stage is not None and stage.shards is not None and stage.progress is not None
    assert (stage.shards.count, stage.shards.done, stage.shards.median_seconds) == (6, 2, 100.0)
    assert list(stage.shards.running) == ["2/6", "3/6", "6/6"] and stage.shards.late == ["3/6"]
    assert (stage.progress.done, stage.progress.total) == (2, 5)
    said = nlac(store, "status").stdout
    assert "2 of 6 shards done (half of them took 100 s or less), 1 running" in said, said


def test_a_run_that_does_not_move_is_warned_of_after_the_stated_time(running: Store) -> None:
    old = time.time() - 1000
    for path in running.root.rglob("*.json"):
        os.utime(path, (old, old))
    assert "WARNING: nothing has moved for 17 min" in nlac(running, "status").stdout
    assert "WARNING" not in nlac(running, "status", "--still-after", "2000").stdout
    told = json.loads(nlac(running, "status", "--format", "json").stdout)
    assert told["runs"][0]["warning"].startswith("nothing has moved")


def test_what_failed_is_named_with_its_reason_and_the_commands_that_go_on(store: Store) -> None:
    begin(store, CONFIG, 0, STAGES[:2])
    fail(store, CONFIG, 0, STAGES[2])
    name = "iteration-trial-0"
    own = FlowRun(id="43", name=name)  # of a `nlac iterate` without workers
    deployed = [FlowRun(id=number, name=name, deployment_id="7") for number in ("42", "41")]
    found = look(store, failed=[own, *deployed])
    assert found.state == "stopped" and found.attempts == {"StageInterrupted": 1, "StageFailed": 1}
    assert found.failure is not None and found.failure.stage == STAGES[2]
    assert found.failure.reason.startswith("StageFailed: no critique is")
    assert found.failure.commands == ["nlac iterate --run trial", "prefect flow-run retry 42"]
    assert [stage.state for stage in found.stages[:4]] == ["committed", "committed", "failed", "waiting"]
    said = nlac(store, "status", "--run", "trial").stdout
    assert f"stopped at {STAGES[2]}: StageFailed" in said and "\x1b[31m" not in said
    assert "to go on: " in said and " iterate" in said


def test_a_run_that_another_host_computes_runs_though_its_lock_is_there(store: Store) -> None:
    config = CONFIG.model_copy(update={"pools": CONFIG.pools.model_copy(update={"shards": 2})})
    begin(store, config, 0)
    assert look(store).state == "stopped"
    ago = datetime.now(UTC) - timedelta(seconds=90)
    runs = [
        FlowRun(id=name, name=name, start_time=ago) for name in ("iteration-trial-0", "rollout-trial-0-2of2")
    ]
    found = look(store, runs)
    assert found.state == "running" and found.holder == "flow run iteration-trial-0"
    assert found.stage is not None and found.stage.shards is not None
    assert list(found.stage.shards.running) == ["2/2"]
    scheduled = FlowRun(id="1", name="iteration-trial-0")
    assert look(store, [scheduled]).state == "stopped"


def test_without_a_stack_here_the_server_is_asked_that_the_environment_names_with_its_secret(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(store.root)
    run = {"id": "1", "name": "iteration-trial-0", "state_name": "Running"}
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    with answering(
        lambda asked: (200, json.dumps([run] if "POST" in asked else {"token": "t"}).encode())
    ) as server:
        monkeypatch.setenv("PREFECT_API_URL", f"{server.url}/api")
        assert "stack: not up" in nlac(store, "status").stdout and not server.asked
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "nlac:secret")
        said = nlac(store, "status").stdout
        assert f"stack: {server.url}" in said and "Running: iteration-trial-0" in said
        assert not (store.root / ".stack").exists(), "no secret was drawn"
        stack_secret(store.root)  # as an earlier stack of this host left it
        assert nlac(store, "status").stdout == said
    assert server.credentials == {"Basic bmxhYzpzZWNyZXQ="}, "the stack's own secret goes to no other server"


def test_a_killed_run_is_no_running_one(running: Store) -> None:
    gone = {"holder": "a process that was killed", "pid": 2**22 + 1}
    replace_text(running.run_dir("trial") / ".lock.json", json.dumps(gone))
    found = look(running)
    assert found.state == "stopped" and found.failure is not None
    assert found.failure.reason.startswith("no attempt left an error")


def test_an_iteration_that_lacks_its_end_alone_is_gone_on_with(store: Store) -> None:
    begin(store, CONFIG, 0, STAGES)
    found = look(store)
    assert found.state == "stopped" and found.failure is not None and found.failure.stage is None
    assert found.failure.commands == ["nlac iterate --run trial"]
    said = nlac(store, "status").stdout
    assert "stopped: every stage is committed, and the iteration was not closed" in said
    assert "to go on: " in said and "iterate" in said


def test_a_flow_run_that_was_refused_at_its_start_is_named_until_something_moves(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = datetime.now(UTC).isoformat()
    refused = {
        "id": "7", "name": "training-trial", "tags": ["nlac", "run:trial"], "end_time": ended,
        "state": {"type": "FAILED", "message": "ConfigError: model.name: no such folder"},
    }  # fmt: skip
    up = Stack(pid=os.getpid(), port=1, data=str(store.root), state="ready")
    monkeypatch.setattr("flows.stack.record.read_stack", lambda root: up)
    monkeypatch.setattr(
        "flows.stack.api.ask",
        lambda stack, path, body: [refused] if "FAILED" in body["flow_runs"]["state"]["type"]["any_"] else [],
    )
    make_folder(store.root)
    line = "failed at its start: training-trial: ConfigError: model.name: no such folder"
    assert line in nlac(store, "status").stdout
    told = json.loads(nlac(store, "status", "--format", "json").stdout)
    assert told["failed"]["reason"].startswith("ConfigError")
    begin(store, CONFIG, 0, STAGES)
    finish_iteration(store, "trial", 0)
    for path in store.root.rglob("current.json"):
        os.utime(path, (time.time() + 5, time.time() + 5))
    assert line not in nlac(store, "status").stdout
    refused["end_time"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert line in nlac(store, "status").stdout, "a later attempt of the same run"


def test_watching_ends_when_nothing_runs_and_json_is_a_line_each(
    running: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_look(seconds: float) -> None:
        (running.run_dir("trial") / ".lock.json").unlink()

    monkeypatch.setattr(command.time, "sleep", next_look)
    lines = nlac(running, "status", "--watch", "--format", "json").stdout.splitlines()
    assert [json.loads(line)["runs"][0]["state"] for line in lines] == ["running", "stopped"]
    assert json.loads(lines[0])["gpus"] == list(command._gpus())


def test_gpus_are_read_from_nvidia_smi_where_there_is_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 37, 1024, 81559'\necho 'NVIDIA A100, [N/A], 512, 40536'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert list(command._gpus()) == [
        {"name": "NVIDIA H100", "busy_percent": 37.0, "used_mb": 1024.0, "total_mb": 81559.0},
        {"name": "NVIDIA A100", "busy_percent": None, "used_mb": 512.0, "total_mb": 40536.0},
    ]
    said = nlac(store, "status").stdout
    assert "GPU NVIDIA H100: 37% busy, 1024 of 81559 MB" in said and "A100: ?% busy, 512" in said
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert list(command._gpus()) == []


def test_an_empty_data_root_and_an_unknown_run_are_said(store: Store) -> None:
    make_folder(store.root)
    assert "no run yet" in nlac(store, "status").stdout
    assert nlac(store, "status", "--run", "nope").exit_code == 2


def test_status_and_report_choose_the_run_that_moved_last(store: Store) -> None:
    for run, moved in (("default", 1000), ("trial", 3000), ("other", 2000)):
        begin(store, CONFIG.model_copy(update={"run": run}), 0)
        commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", 2, run=run)]}, run=run)
        os.utime(store.current_path(run, 0), (moved, moved))
    assert "run 'trial', iteration 0" in nlac(store, "status").stdout
    assert nlac(store, "report").stdout.startswith("Iteration 0 of run 'trial'")


def test_a_report_is_text_markdown_or_json_and_of_the_newest_iteration_unless_another_is_named(
    store: Store,
) -> None:
    for iteration, successes in enumerate((2, 6)):
        row = evaluation("p", successes, iteration=iteration)
        commit_rows(store, "evaluation", iteration, {"evaluations": [row]})
    newest = nlac(store, "report", "--run", "trial")
    assert newest.exit_code == 0 and newest.stdout.startswith("Iteration 1 of run 'trial'")
    assert "success: 0.600" in newest.stdout and "iteration 0: 0.200" in newest.stdout
    assert nlac(store, "report", "0", "--run", "trial").stdout.startswith("Iteration 0 of run 'trial'")
    told: dict[str, Any] = json.loads(nlac(store, "report", "--run", "trial", "--format", "json").stdout)
    assert told["success"]["rate"] == 0.6 and told["before"]["iteration"] == 0
    assert nlac(store, "report", "--run", "trial", "--format", "markdown").stdout.startswith("## Iteration 1")
    refused = nlac(store, "report", "7", "--run", "trial")
    assert refused.exit_code == 2 and "no data of iteration 7" in refused.stderr
