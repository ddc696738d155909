"""A game of which each episode holds something until it is closed."""

from typing import ClassVar

from tasks.environments.base import Task
from tasks.environments.textarena import TextArena


class Holding(TextArena):
    """Guess the number; `held` are the instances that hold something, `closed` counts those that gave it back."""

    held: ClassVar["set[Holding]"] = set()
    closed: ClassVar[int] = 0

    async def reset(self, task: Task) -> str:
        Holding.held.add(self)
        return await super().reset(task)

    async def close(self) -> None:
        Holding.closed += self in Holding.held
        Holding.held.discard(self)
