"""TextArena behind the environment protocol: the package's own games, played for real."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from schemas.config import EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import Step, Task, would_accept
from tasks.environments.textarena import TextArena
from tasks.environments.textarena.validation import faults


def play(actions: list[str], number: int = 0) -> list[Step]:
    async def run() -> list[Step]:
        game = TextArena()
        await game.reset(game.tasks("eval")[number])
        steps = []
        for action in actions:
            steps.append(await game.step(action))
            if steps[-1].done:
                break
        return steps

    return asyncio.run(run())


def test_trying_every_number_wins_with_reward_one() -> None:
    # eleven actions are allowed by the game (ten turns and the one that meets the limit), so halve the range
    low, high, steps, tried = 1, 20, [], []
    while low <= high:
        tried.append(f"[{(low + high) // 2}]")
        steps = play(tried)
        if steps[-1].success:
            break
        low, high = (
            ((low + high) // 2 + 1, high)
            if "higher" in steps[-1].observation
            else (low, (low + high) // 2 - 1)
        )
    assert steps[-1].success and steps[-1].done and steps[-1].reward == 1.0
    assert all(step.valid and step.reward == 0.0 and not step.done for step in steps[:-1])


def test_losing_by_the_games_own_turn_limit_is_done_not_truncated() -> None:
    target = next(n for n in range(1, 21) if play([f"[{n}]"])[-1].success)
    wrong = [f"[{n}]" for n in range(1, 21) if n != target]
    steps = play(wrong)
    assert steps[-1].done and not steps[-1].truncated and not steps[-1].success
    assert "turn limit" in steps[-1].observation
    assert steps[-1].valid


def test_a_game_lost_by_invalid_moves_is_done() -> None:
    steps = play(["[99]", "[98]"])
    assert [s.valid for s in steps] == [False, False]
    assert steps[-1].done and not steps[-1].success


def test_seeds_make_the_game_and_leave_pythons_random_alone() -> None:
    random.seed(7)
    expected = [random.random() for _ in range(3)]
    random.seed(7)
    found = [random.random()]
    first = play(["[10]", "[5]"], number=4)
    found.append(random.random())
    again = play(["[10]", "[5]"], number=4)
    found.append(random.random())
    assert first == again
    assert found == expected


def test_episodes_that_run_at_once_do_not_disturb_one_another() -> None:
    async def together() -> list[Step]:
        games = [TextArena() for _ in range(8)]
        for game, task in zip(games, games[0].tasks("train"), strict=False):
            await game.reset(task)
        return [await game.step("[10]") for game in games]

    async def alone(number: int) -> Step:
        game = TextArena()
        await game.reset(game.tasks("train")[number])
        return await game.step("[10]")

    assert asyncio.run(together()) == [asyncio.run(alone(n)) for n in range(8)]


def test_splits_are_disjoint_and_ids_stable() -> None:
    game = TextArena()
    train, held_out = game.tasks("train"), game.tasks("eval")
    assert not {t.task_id for t in train} & {t.task_id for t in held_out}
    assert not {t.seed for t in train} & {t.seed for t in held_out}
    assert train[3] == TextArena().tasks("train")[3]


def test_acceptance_is_found_by_playing_the_past_again() -> None:
    game = TextArena()
    task = next(t for t in game.tasks("train") if not asyncio.run(_wins(t, "[10]")))
    assert asyncio.run(would_accept(TextArena(), task, [], "", "[10]"))
    assert not asyncio.run(would_accept(TextArena(), task, ["[10]"], "", "[10]"))  # tried already
    assert not asyncio.run(would_accept(TextArena(), task, [], "", "[42]"))


async def _wins(task: object, action: str) -> bool:
    game = TextArena()
    await game.reset(task)  # type: ignore[arg-type]
    return (await game.step(action)).success


def test_it_validates_without_a_model() -> None:
    assert TextArena().validate() == []


class Silent(TextArena):
    async def reset(self, task: Task) -> str:
        await super().reset(task)
        return " "


class Restless(TextArena):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stamp = f"{id(self)}"

    async def reset(self, task: Task) -> str:
        return f"{await super().reset(task)} {self.stamp}"


class Moody(Restless):
    async def reset(self, task: Task) -> str:
        return await TextArena.reset(self, task)

    async def step(self, action: str) -> Step:
        return replace(await super().step(action), observation=self.stamp)


@pytest.mark.parametrize(
    ("game", "said"),
    [
        (Silent, "opens without any text"),
        (Restless, "opened differently the second time"),
        (Moody, "went differently the second time, at action 0"),
    ],
)
def test_a_game_that_does_not_repeat_itself_is_a_fault(game: type[TextArena], said: str) -> None:
    assert any(said in fault for fault in faults(game()))


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"name": "chess"}, "environment.name: 'chess' is unknown"),
        ({"name": "nowhere.at_all:Thing"}, "--allow-import nowhere"),
        ({"name": "tests.nowhere:Thing"}, "can't be imported"),
        ({"options": {"game": "NoSuchGame-v0"}}, "no game 'NoSuchGame-v0'"),
        ({"options": {"colour": "red"}}, "colour"),
    ],
)
def test_an_unusable_environment_is_named(section: dict[str, object], named: str) -> None:
    with pytest.raises(UnusableEnvironment, match=named):
        make_environment(EnvironmentSection.model_validate(section))
