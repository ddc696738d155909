"""Environments of the library `verifiers` as ours, and ours as its own."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="needs the package verifiers 0.4, which has pins of its own")

from schemas.load import PROJECT_ROOT
from tasks.environments.base import EpisodeFailed, Step
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.interchange.from_verifiers import FromVerifiers

COUNTING, OURS = "verifiers_counting", "nlac_taskset"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library names tasksets by modules of one word."""
    monkeypatch.syspath_prepend(str(PROJECT_ROOT / "tests" / "support"))


def play(
    environment: Any, actions: list[str], split: str = "train", number: int = 0
) -> tuple[str, list[Step]]:
    async def run() -> tuple[str, list[Step]]:
        first = await environment.reset(environment.tasks(split)[number])
        steps = []
        for action in actions:
            steps.append(await environment.step(action))
            if steps[-1].done:
                break
        return first, steps

    return asyncio.run(run())


def test_a_taskset_of_the_library_is_played_turn_by_turn_and_scored_by_its_own_rewards() -> None:
    environment = FromVerifiers(COUNTING, {"turns": 3}, train=4, held_out=2)
    assert environment.validate() == []
    assert [len(environment.tasks(split)) for split in ("train", "eval", "validation")] == [4, 2, 0]
    first, steps = play(environment, ["3", "4", "5"], number=2)
    assert first == "Count.\n\nWhat follows 2?"
    assert [step.observation for step in steps] == ["And after 3?", "And after 4?", "The episode is over."]
    assert [(step.reward, step.done, step.success) for step in steps] == [
        (0.0, False, False), (0.0, False, False), (1.0, True, True),
    ]  # fmt: skip
    _, wrong = play(environment, ["5", "7", "6"], "eval")
    assert (wrong[-1].reward, wrong[-1].success) == (0.5, False), "4, 5 and 6 follow"
    with pytest.raises(EpisodeFailed, match="RuntimeError: broken"):
        play(environment, ["break"])
    left, again = play(environment, ["1"]), play(environment, ["1", "2", "3"])
    assert left[0] == again[0] and again[1][-1].reward == 1.0, "an episode may be left"


@pytest.mark.parametrize(
    "way", [["right", "right", "down", "down", "down", "right"], ["up", "nonsense", "left"]]
)
def test_ours_offered_to_the_library_is_the_same_environment(way: list[str]) -> None:
    options = {"maps": 3}
    lake = FrozenLake(**options)
    offered = FromVerifiers(
        OURS, {"environment": "frozen_lake", "options": options, "max_steps": len(way)}, train=3, held_out=3
    )
    first, steps = play(lake, way, number=1)
    told, theirs = play(offered, [f"Action: {action}" for action in way], number=1)
    assert told.startswith(lake.instructions) and told.endswith(first)
    assert [step.observation for step in theirs[:-1]] == [
        step.observation for step in steps[: len(theirs) - 1]
    ]
    assert len(theirs) == len(steps) and theirs[-1].reward == sum(step.reward for step in steps)


def test_what_can_not_be_played_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="has 2 tasks; ask for fewer"):
        FromVerifiers(
            OURS, {"environment": "line_walk", "options": {"cells": 5, "held_out": 1}, "split": "eval"}, 4, 99
        )
