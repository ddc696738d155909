"""Checks of pages without a model: a scripted solution succeeds, and random episodes are the same when played twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tasks.environments.base import EpisodeFailed, Step, Task
from tasks.environments.miniwob.solutions import SOLUTIONS, solve

if TYPE_CHECKING:
    from tasks.environments.miniwob.environment import MiniWoB

SOLVED = 2  # eval tasks of each page that has a solution
LONGEST = 12  # most actions of a random episode


def faults(environment: "MiniWoB") -> list[str]:
    """One line per fault: a page that opens without an element, that a random player can't play, that goes differently
    the second time, or whose solution earns less than reward 1."""

    async def all_pages() -> list[list[str]]:
        first: dict[str, list[Task]] = {}
        for task in environment.tasks("eval"):
            first.setdefault(task.task_id.split("/")[0], []).append(task)
        return await asyncio.gather(*(_page(environment, page, tasks) for page, tasks in first.items()))

    return [fault for found in asyncio.run(all_pages()) for fault in found]


async def _page(environment: "MiniWoB", page: str, tasks: list[Task]) -> list[str]:
    """Faults of a page."""
    found = []
    try:
        first, second = [[seen async for seen in play_at_random(environment, tasks[0])] for _ in range(2)]
        if first != second:
            turn = next(n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
            found.append(
                f"{environment.name}: task {tasks[0].task_id} went differently the second time, at {turn}"
            )
        for task in tasks[:SOLVED] if page in SOLUTIONS else []:
            last = await play_solution(environment, task)
            if last.reward != 1.0:
                found.append(f"{environment.name}: the solution of {task.task_id} ends with {last.reward:g}")
    except EpisodeFailed as error:
        found.append(f"{environment.name}: {page}: {error}")
    except (LookupError, ValueError) as error:
        found.append(f"{environment.name}: {page} shows too little: {type(error).__name__}: {error}")
    return found


async def play_at_random(environment: "MiniWoB", task: Task) -> AsyncIterator[str]:
    """The observations of an episode of random legal actions, on an instance of its own."""
    own = environment.another()
    stream = random.Random(f"actions of {task.task_id}")
    try:
        seen = await own.reset(task)
        yield seen
        for _ in range(LONGEST):
            step = await own.step(stream.choice(own.legal_actions(seen)))
            seen = step.observation
            yield seen
            if step.done:
                return
    finally:
        await own.close()


async def play_solution(environment: "MiniWoB", task: Task) -> Step:
    """The last step of a page's scripted solution, on an instance of its own."""
    own = environment.another()
    page = task.task_id.split("/")[0]
    try:
        step = Step(await own.reset(task))
        while not step.done:
            step = await own.step(solve(page, step.observation))
        return step
    finally:
        await own.close()
