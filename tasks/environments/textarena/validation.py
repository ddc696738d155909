"""Checks of a game without a model: random players play it twice, side by side."""

import asyncio
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.chat.messages import Message
from tasks.environments.base import EpisodeFailed, Step, Task

if TYPE_CHECKING:
    from tasks.environments.textarena import TextArena

OPENINGS = 10
PLAYED = 3
LONGEST = 2000  # most actions of a random game; TextArena's own limits are below 300


def faults(game: "TextArena") -> list[str]:
    """One line per fault: an opening without text, an opening or game that differs the second time, a game that fails,
    that does not end, or that ends without a finite reward."""
    return list(_faults(game))


def _faults(game: "TextArena") -> Iterator[str]:
    for number, task in enumerate(game.tasks("eval")[:OPENINGS]):
        yield from asyncio.run(_twice(game, task, LONGEST if number < PLAYED else 0))


async def _twice(game: "TextArena", task: Task, longest: int) -> list[str]:
    """Faults of one task, played up to `longest` actions."""
    place = f"{game.name}: task {task.task_id}"
    stream = random.Random(f"moves of {task.task_id}")  # the task's own seed would repeat the game's draws
    pair = [_again(game, task) for _ in range(2)]
    try:
        first, second = [await one.reset(task) for one in pair]
        if not first.strip():
            return [f"{place} opens without any text"]
        if first != second:
            return [f"{place} opened differently the second time"]
        for turn in range(longest):
            action = draw(game, stream)
            here, there = [await one.step(action) for one in pair]
            if here != there:
                return [f"{place} went differently the second time, at action {turn} {action}"]
            if here.done:
                return [f"{place} ended with reward {here.reward}"] if not _proper(here) else []
    except EpisodeFailed as error:
        return [f"{place}: {error}"]
    return [f"{place} had no end after {longest} actions"] if longest else []


def _proper(end: Step) -> bool:
    return math.isfinite(end.reward) and not end.truncated and bool(end.observation.strip())


def _again(game: "TextArena", task: Task) -> "TextArena":
    """A new instance of the game, against a random opponent if it is for two."""
    fresh = type(game)(**game.options)
    stream = random.Random(f"replies of {task.task_id}")

    async def ask(messages: tuple[Message, ...], *, request_key: str, regex: str | None = None) -> str:
        return draw(game, stream)

    fresh.connect(ask)
    return fresh


def draw(game: "TextArena", stream: random.Random) -> str:
    """A random move; a number if the game's moves are unknown, which it may refuse."""
    sample = game.action_format.sample
    return sample(stream) if sample else f"[{stream.randrange(10)}]"
