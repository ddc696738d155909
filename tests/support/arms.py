"""A bandit of two arms for a model that can say nothing yet: texts that begin with a letter pay, all others don't."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.rows import Split
from tasks.environments.base import ActionFormat, Step, Task


class TwoArms:
    """Any text is an action. So many turns are played, and each can pay.

    Args:
        turns: of an episode.
        pays: whether any arm does.
    """

    name = "two_arms"
    instructions = ""
    action_format = ActionFormat(r"[\s\S]*", "any text")
    templates: Mapping[str, Path] = {"policy": Path(__file__).with_name("arms_policy.j2")}
    replayable, markov = True, False

    def __init__(self, turns: int = 1, *, pays: bool = True) -> None:
        self._turns, self._pays = turns, pays

    def tasks(self, split: Split) -> Sequence[Task]:
        return [
            Task(f"{split}/{number}", split, number) for number in range(4 if split != "validation" else 0)
        ]

    async def reset(self, task: Task) -> str:
        self._left = self._turns
        return f"arm {task.seed}?"

    async def step(self, action: str) -> Step:
        self._left -= 1
        paid = float(self._pays and action[:1].isascii() and action[:1].isalpha())
        return Step("yes" if paid else "no", paid, done=not self._left, success=bool(paid))

    def validate(self) -> list[str]:
        return []
