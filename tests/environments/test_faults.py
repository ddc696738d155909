"""What `nlac env validate` says of an environment that breaks the protocol."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.rows import Split
from tasks.environments.base import ActionFormat, Step, Task, would_accept
from tasks.environments.checks import faults_of


class Corridor:
    """Two steps forward win; a wrong word is refused."""

    name = "corridor"
    instructions = "Walk."
    action_format = ActionFormat("go|wait", "go or wait")
    templates: Mapping[str, Path] = {}
    replayable, markov = True, False

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"corridor/{split}/{number}", split, number) for number in range(2)]

    async def reset(self, task: Task) -> str:
        self._place = 0
        return "A corridor."

    async def step(self, action: str) -> Step:
        self._place += action == "go"
        won = self._place == 2
        return Step("further", reward=float(won), done=won, success=won, valid=action in ("go", "wait"))

    def validate(self) -> list[str]:
        return []


class Homonyms(Corridor):
    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task("the same", split, 0)] * 2


class Unsteady(Corridor):
    drawn = 0

    def tasks(self, split: Split) -> Sequence[Task]:
        self.drawn += 1
        return [Task(f"{split}/{self.drawn}", split, 0)]


class Unheld(Corridor):
    def tasks(self, split: Split) -> Sequence[Task]:
        return [] if split == "eval" else super().tasks(split)


class Unwritten(Corridor):
    templates: Mapping[str, Path] = {"policy": Path("/no/such.j2")}
    action_format = ActionFormat("go|(", "go")


class Lists(Corridor):
    def legal_actions(self, observation: str) -> Sequence[str]:
        return ["go", "fly"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            Homonyms(),
            [
                "two tasks of split train have the same task_id",
                "a task is in both splits train and eval: the same",
            ],
        ),
        (Unsteady(), ["tasks('train') gives other tasks when it is called again"]),
        (Unheld(), ["there is no task of split eval"]),
        (Unwritten(), ["not a regular expression", "templates: policy: no file /no/such.j2"]),
        (Lists(), ["legal_actions lists 'fly', which action_format.regex does not match"]),
        (object(), ["has no name; see Environment"]),
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, list) else "",
)
def test_a_fault_of_the_protocol_is_named(environment: Any, said: list[str]) -> None:
    found = "\n".join(faults_of(environment))
    assert all(fault in found for fault in said), found


def test_a_sound_environment_has_no_faults() -> None:
    assert faults_of(Corridor()) == []


def test_nothing_is_accepted_after_the_end() -> None:
    def accepted(*actions: str) -> bool:
        world = Corridor()
        *past, last = actions
        return asyncio.run(would_accept(world, world.tasks("eval")[0], past, "further", last))

    assert accepted("go") and accepted("go", "go")
    assert not accepted("go", "fly")
    assert not accepted("go", "go", "go")
