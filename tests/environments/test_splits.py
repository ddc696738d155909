"""Validation tasks: an environment's own or lent ones, apart from what trains and what is reported."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from schemas.config import EnvironmentSection
from schemas.load import PROJECT_ROOT
from schemas.rows import Split
from tasks.environments import make_environment
from tasks.environments.base import Environment, Task, Unplayable
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake.maps import generate_maps
from tasks.environments.registry import BUILTIN
from tasks.environments.splits import SPLITS, own_validation_tasks, played_tasks, shared_tasks
from tests.support.tool_game import ToolGame

INSTALLED = [name for name, builtin in BUILTIN.items() if builtin.missing is None]
OPTIONS = {"twenty_questions": {"oracle": "facts"}, "tau_bench": {"user": "scripted"}}


def make(name: str) -> Environment:
    return make_environment(EnvironmentSection(name=name, options=OPTIONS.get(name, {})))


@pytest.mark.parametrize("name", INSTALLED)
def test_no_two_splits_of_an_environment_share_a_task(name: str) -> None:
    environment = make(name)
    assert list(shared_tasks(environment)) == []
    found = {split: list(played_tasks(environment, split)) for split in SPLITS}
    assert found == {split: list(played_tasks(make(name), split)) for split in SPLITS}
    if not isinstance(environment, Unplayable):
        assert all(found.values())
    own = own_validation_tasks(environment)
    assert bool(own) == (
        name in ("frozen_lake", "line_walk", "miniwob", "reasoning_gym", "tau_bench", "textarena")
    )
    train = environment.tasks("train")
    if own:
        assert found["train"] == list(train) and found["validation"] == list(own)
    else:
        assert len(found["validation"]) == len(train) // 10
        assert sorted(found["train"] + found["validation"], key=train.index) == list(train)


class Numbered(ToolGame):
    """A game of as many training tasks as it is told, written when there were two splits."""

    def __init__(self, count: int) -> None:
        self.known = {
            "train": [Task(f"game/{n}", "train", n) for n in range(count)],
            "eval": [Task("held out", "eval", 0)],
        }

    def tasks(self, split: Split) -> Sequence[Task]:
        return self.known[split]


@pytest.mark.parametrize(("count", "lent"), [(0, 0), (9, 0), (10, 1), (19, 1), (200, 20)])
def test_an_environment_without_validation_tasks_lends_a_tenth(count: int, lent: int) -> None:
    game = Numbered(count)
    assert [len(played_tasks(game, split)) for split in SPLITS] == [count - lent, lent, 1]


def test_which_tasks_are_lent_depends_on_their_ids_alone() -> None:
    lent = {task.task_id for task in played_tasks(Numbered(200), "validation")}
    more = Numbered(201)
    more.known["train"].reverse()
    assert len(lent & {task.task_id for task in played_tasks(more, "validation")}) >= 19
    code = (
        "from tests.environments.test_splits import Numbered, played_tasks\n"
        "print(*[task.task_id for task in played_tasks(Numbered(200), 'validation')], sep=',')"
    )
    elsewhere = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert set(elsewhere.stdout.strip().split(",")) == lent, elsewhere.stderr


def test_own_validation_tasks_that_are_training_tasks_are_named() -> None:
    game = Numbered(20)
    game.known["validation"] = [replace(task, split="validation") for task in game.known["train"][3:5]]
    assert list(shared_tasks(game)) == ["a task is in both splits train and validation: game/3"]


def test_the_lakes_maps_of_training_and_evaluation_are_the_first_ones() -> None:
    environment = FrozenLake(maps=8)
    drawn = list(generate_maps(16, 4, 0.75, 6, 0).values())
    assert [lake.rows for lake in environment.lakes("train")] == drawn[:8]
    assert [lake.rows for lake in environment.lakes("eval")] == drawn[8:]
    assert not {lake.rows for lake in environment.lakes("validation")} & set(drawn)
    assert [task.task_id[-5:] for task in environment.tasks("validation")] == ["/r0c0"] * 8
