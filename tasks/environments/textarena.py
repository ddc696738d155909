"""Single-player games of TextArena (package `textarena`), by id."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, GlobalRandom, Step, Task

TASKS: dict[Split, int] = {"train": 1000, "eval": 200}
_NUMBER = ActionFormat(r"\[(?:[1-9]|1[0-9]|20)\]", "a number in square brackets, for example [5]")
FORMATS = {"GuessTheNumber-v0": _NUMBER}
BRACKETS = ActionFormat(r"\[[^\[\]\n]{1,40}\]", "one move in square brackets, as the game describes it")


class TextArena:
    """A TextArena game for one player.

    The seed makes the game exactly, although TextArena draws from Python's global `random`: every episode
    keeps its own state of it. A game's own turn limit, and a game lost by invalid moves, end the episode
    as done. The game's reward comes at the end; success is its full reward, 1.

    Args:
        game: the game's id, for instance GuessTheNumber-v0.
        action_regex: how its actions are written, where the built-in format does not fit.

    Raises:
        ValueError: no such game, or it is not for one player.
    """

    templates: Mapping[str, Path] = {}
    replayable = True
    markov = False

    def __init__(self, game: str = "GuessTheNumber-v0", action_regex: str | None = None) -> None:
        import textarena

        if f"{game}-raw" not in textarena.envs.registration.ENV_REGISTRY:
            raise ValueError(f"TextArena has no game '{game}'")
        self._make = textarena.make
        self._invalid = textarena.ObservationType.GAME_ADMIN
        self._own = textarena.ObservationType.PLAYER_ACTION
        self.game = game
        self.name = f"textarena/{game}"
        self.instructions = "You are playing a game. Follow its rules and try to win."
        chosen = FORMATS.get(game, BRACKETS)
        self.action_format = ActionFormat(action_regex, chosen.description) if action_regex else chosen
        self._env: Any = None

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._task(split, number) for number in range(TASKS[split])]

    def _task(self, split: Split, number: int) -> Task:
        task_id = f"{self.game}/{split}/{number:04d}"
        return Task(task_id, split, int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big"))

    async def reset(self, task: Task) -> str:
        self._random = GlobalRandom(task.seed)
        with self._random:
            self._env = self._make(f"{self.game}-raw")
            self._env.reset(num_players=1, seed=task.seed)
            return self._seen()[0]

    async def step(self, action: str) -> Step:
        with self._random:
            done, _ = self._env.step(action)
            seen, refused = self._seen()
            if not done:
                return Step(seen, valid=not refused)
            rewards, info = self._env.close()
        reward = float((rewards or {}).get(0, 0.0))
        ended = str(info[0].get("reason") or "The game is over.")
        return Step(
            "\n".join(filter(None, [seen, ended])),
            reward=reward,
            done=True,
            success=reward >= 1.0,
            valid=not info[0].get("invalid_move", False),
        )

    def _seen(self) -> tuple[str, bool]:
        """What is new to the player since last asked, and whether the game refused the move."""
        _, observations = self._env.get_observation()
        news = [(message, kind) for _, message, kind in observations if kind is not self._own]
        return "\n".join(message.strip() for message, _ in news), any(
            kind is self._invalid for _, kind in news
        )

    def validate(self) -> list[str]:
        """Play every eval task's opening twice: it must be the same both times and ask for something."""
        import asyncio

        async def openings() -> list[str]:
            return [await self.reset(task) for task in self.tasks("eval")]

        first, second = asyncio.run(openings()), asyncio.run(openings())
        faults = [] if first == second else [f"{self.name}: the same seeds gave different games"]
        return faults + [f"{self.name}: a game opens without any text" for text in first if not text.strip()]
