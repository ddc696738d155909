"""The soak's parts; tests/flows/test_soak.py kills."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks.reliability.configurations import configuration, make_checkpoint
from benchmarks.reliability.driving import Driver
from benchmarks.reliability.page import PAGE, between, parts, soak_text
from benchmarks.reliability.results import (
    Kill,
    Result,
    by_victim,
    note_kill,
    read_kills,
    read_results,
    write_result,
)
from benchmarks.reliability.schedule import planned
from benchmarks.reliability.tables import compare
from benchmarks.reliability.victims import KINDS, kill_one, kind_of, victims
from benchmarks.reliability.ways import InProcess
from flows.stack.environment import STACK_MARK
from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tests.support.committed import commit_rows
from tests.support.rows import episode, transitions

WAITS = [sys.executable, "-c", "import time; time.sleep(600)", "prefect.engine"]


def test_kills_are_the_same_for_a_seed_and_each_kind_takes_its_turn() -> None:
    first = [planned("served 0", number, KINDS) for number in range(70)]
    assert first == [planned("served 0", number, KINDS) for number in range(70)]
    assert first != [planned("served 1", number, KINDS) for number in range(70)]
    for turn in range(10):
        assert {kill.victim for kill in first[7 * turn : 7 * turn + 7]} == set(KINDS)
    at_once = [kill for kill in first if kill.commits == 0]
    assert 5 < len(at_once) < 25
    assert all(0 <= kill.wait < 1 for kill in first) and len({kill.wait for kill in first}) == 70


def test_a_process_is_known_by_its_command() -> None:
    python = [sys.executable, "-m"]
    api_server = ["vllm.entrypoints.openai.api_server", "--port", "1"]
    commands = {
        "supervisor": [*python, "flows.stack.supervisor", "--data", "d"],
        "server": [*python, "prefect", "server", "start"],
        "worker": [*python, "prefect", "worker", "start", "--pool", "p"],
        "model server": [*python, *api_server],
        "model supervisor": [*python, "tasks.engines.vllm.server_supervisor", "f", "1", *python, *api_server],
        "stage": [*python, "prefect.engine"],
    }
    assert {kind: kind_of(command, {}) for kind, command in commands.items()} == {k: k for k in commands}
    assert kind_of(commands["stage"], {"PREFECT__DEPLOYMENT_NAME": "iteration"}) == "iteration"
    assert kind_of(["sleep", "600"], {}) is None


def test_only_descendants_with_the_mark_of_the_data_root_are_killed(tmp_path: Path) -> None:
    marked = {**os.environ, STACK_MARK: str(tmp_path)}
    ours = subprocess.Popen(WAITS, env=marked)
    unmarked = subprocess.Popen(WAITS)
    elsewhere = subprocess.Popen(WAITS, env={**os.environ, STACK_MARK: str(tmp_path / "other")})
    try:
        assert [(kind, process.pid) for kind, process in victims(tmp_path)] == [("stage", ours.pid)]
        assert not kill_one(tmp_path, "worker", Random(0)) and ours.poll() is None
        assert kill_one(tmp_path, "stage", Random(0))
        assert ours.wait(10) == -9
        assert unmarked.poll() is None and elsewhere.poll() is None
    finally:
        for process in (unmarked, elsewhere):
            process.kill()
            process.wait()


def rollout(root: Path, *returns: float) -> Store:
    """A store with a rollout of an episode for each reward."""
    store = Store(root)
    played = [episode(number, success=reward > 0) for number, reward in enumerate(returns)]
    tables = {"episodes": played, "transitions": [step for one in played for step in transitions(one)]}
    commit_rows(store, "rollout", 0, tables)
    return store


def test_lost_and_doubled_rows_are_counted(tmp_path: Path) -> None:
    whole, same = rollout(tmp_path / "whole", 1, 0, 1), rollout(tmp_path / "same", 1, 0, 1)
    found = compare(same, whole, "trial")
    assert (found.tables, found.differing, found.lost, found.surplus) == (2, [], 0, 0)
    cut = compare(rollout(tmp_path / "cut", 1, 0), whole, "trial")
    assert cut.differing == ["rollout@0.episodes", "rollout@0.transitions"]
    assert cut.lost > 1 and cut.surplus == 0
    missing = compare(Store(tmp_path / "none"), whole, "trial")
    assert missing.tables == 2 and len(missing.differing) == 2 and missing.lost > cut.lost


def test_what_is_noted_of_a_kill_is_read_back_when_the_harness_starts_again(tmp_path: Path) -> None:
    notes = tmp_path / "kills.jsonl"
    note_kill(notes, Kill(0, "stage", "rollout", 0))
    note_kill(notes, Kill(0, "stage", "rollout", 0, seconds=4.0, resumed=1))
    note_kill(notes, Kill(1, "server", "critique", 0))
    known = read_kills(notes)
    assert [(kill.number, kill.seconds) for kill in known] == [(0, 4.0), (1, None)]
    assert by_victim(known)[-1] == {
        "victim": "all", "kills": 2, "survived": 2, "run again": 1, "stack started again": 0, "mean s to recover": 4.0,
    }  # fmt: skip


def test_a_result_is_whole_only_if_nothing_is_lost_or_left(tmp_path: Path) -> None:
    result = Result("served", 0, iterations=1, tables=12, kills=[Kill(0, "stage", "rollout", 0, 4.0)])
    write_result(tmp_path, result)
    (read,) = read_results(tmp_path)
    assert read.whole and read.kills == result.kills and read.machine["cores"] and read.date
    for fault in ({"lost": 1}, {"orphans": ["sleep"]}, {"staging": ["x"]}, {"differing": ["t"]}):
        assert not Result(**{**vars(result), **fault}).whole  # type: ignore[arg-type]
    stuck = [Kill(0, "stage", "rollout", 0, survived=False)]
    assert not Result("served", 0, kills=stuck).whole


def test_the_page_holds_the_results_between_its_comments(tmp_path: Path) -> None:
    page = "# A\n<!-- soak: made by x -->\nold\n<!-- end of soak -->\n\nafter\n"
    assert between(page, "soak", "new") == (
        "# A\n<!-- soak: made by x -->\n\nnew\n\n<!-- end of soak -->\n\nafter\n"
    )
    with pytest.raises(ValueError, match="'faults'"):
        between(page, "faults", "new")
    assert soak_text([]) == "The soak was not run yet."
    write_result(tmp_path, Result("served", 0, kills=[Kill(0, "stage", "rollout", 0, 4.0)]))
    text = soak_text(read_results(tmp_path))
    assert "| stage | 1 | 1 | 0 | 0 | 4.0 |" in text and "| rollout | 1 |" in text


def test_the_page_is_made_of_the_committed_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, content in parts().items():
        assert between(text, name, content) == text, f"{name}: run `python -m benchmarks.reliability.page`"


def test_the_driver_sees_nothing_under_way_where_the_holder_of_the_run_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    config = Config.model_validate({"run": "trial"})
    driver = Driver(
        store, config, InProcess(store, "trial", tmp_path), KINDS, "s", 1, tmp_path / "kills.jsonl"
    )
    assert not driver._under_way()
    with store.lock("trial", "this test"):
        assert driver._under_way()
    (tmp_path / "trial" / ".lock.json").write_text('{"holder": "x", "pid": 999999999}')
    assert not driver._under_way()


@pytest.mark.slow
def test_the_tiny_model_s_futures_leave_something_to_train_on(tmp_path: Path) -> None:
    config = configuration("transformers", make_checkpoint(tmp_path / "model"))
    asyncio.run(run_iteration(Store(tmp_path / "data"), config))
    done = Store(tmp_path / "data").committed(config.run, "policy-distillation", 0)
    assert done is not None and done.manifest.rows_in
