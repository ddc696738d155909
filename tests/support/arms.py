"""A bandit of two arms for a model that can say nothing yet: texts that begin with a letter pay, all others don't."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.config import Config
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
        paid = float(self._pays and self._wins(action))
        return Step("yes" if paid else "no", paid, done=not self._left, success=bool(paid))

    def _wins(self, action: str) -> bool:
        return action[:1].isascii() and action[:1].isalpha()

    def validate(self) -> list[str]:
        return []


class ListedArms(TwoArms):
    """Two arms in the usual format of actions, the second of which pays."""

    name = "listed_arms"
    action_format = ActionFormat("[ab]", "a or b")
    templates: Mapping[str, Path] = {
        role: Path(__file__).with_name(f"arms_{role}.j2") for role in ("policy", "predict")
    }

    def legal_actions(self, observation: str) -> Sequence[str]:
        return ["a", "b"]

    def _wins(self, action: str) -> bool:
        return action == "b"


Arms = Callable[..., Config]


def play_arms(
    make_config: Callable[..., Config],
    checkpoint: Path,
    algorithm: str,
    turns: int = 1,
    max_tokens: int = 1,
    *,
    pays: bool = True,
    **changes: Any,
) -> Config:
    """A tiny model plays the bandit, four tasks of eight episodes."""
    given: dict[str, Any] = {
        "algorithm": algorithm,
        "model": {"name": str(checkpoint), "train": "full", "context_length": 400},
        "engines": {"tiny": {"backend": "transformers", "max_batch": 32}},
        "roles": {"policy": {"engine": "tiny", "structured": False, "max_tokens": max_tokens}},
        "environment": {
            "name": "tests.support.arms:TwoArms", "options": {"turns": turns, "pays": pays}, "reward": "game"
        },
        "rollout": {"repeats": 8, "max_steps": turns},
        "policy": {"batch_rows": 16, "micro_batch_rows": 16, "epochs": 2, "learning_rate": 5e-3},
        "evaluation": {"episodes": 4, "every": 100, "baseline": False},
    }  # fmt: skip
    return make_config(**{**given, **changes})
