"""An engine that waits in place of computing, and an environment whose episodes are one question and one answer.

The engine answers so many requests at a time as NLAC_WAIT_CONCURRENCY says, each after NLAC_WAIT_SECONDS, in each
process. So a worker does concurrency / seconds items per second at most, whatever the machine.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from schemas.config import Config, RolesSection
from schemas.load import load_config
from schemas.rows import Split
from tasks.engines.protocol import Completion, Request
from tasks.environments.base import ActionFormat, Step, Task

SECONDS, CONCURRENCY = "NLAC_WAIT_SECONDS", "NLAC_WAIT_CONCURRENCY"
TEXT = "Thought: half of what is left\nAction: [50]"
QUESTION = "Guess a number between 1 and 100. " * 8
TASKS = 1000


@cache
def _places(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    return asyncio.Semaphore(int(os.environ[CONCURRENCY]))


async def waits(request: Request) -> Completion:
    """An answer of some 50 tokens, after the stated time."""
    async with _places(asyncio.get_running_loop()):
        await asyncio.sleep(float(os.environ[SECONDS]))
    return Completion(TEXT, "stop", prompt_tokens=100, completion_tokens=50)


class OneQuestion:
    """A question, an answer, the end."""

    name = "one_question"
    instructions = "Answer with a number."
    action_format = ActionFormat(r"\[\d+\]", "a number in square brackets")
    templates: Mapping[str, Path] = {}
    replayable, markov = True, False

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{number}", split, number) for number in range(TASKS)]

    async def reset(self, task: Task) -> str:
        return f"{QUESTION}{task.seed}"

    async def step(self, action: str) -> Step:
        return Step("It was another one.", 0.0, done=True, success=False)

    def validate(self) -> list[str]:
        return []


def waiting_config(episodes: int, shards: int, run: str) -> Config:
    """A rollout of so many episodes, its roles played by the engine that waits."""
    config: dict[str, Any] = load_config().model_dump() | {"run": run}
    config["model"]["dtype"] = "float32"  # of weights that nobody loads
    config["engines"] = {"waiting": {"backend": "scripted", "rules": f"{__name__}:waits"}}
    for role in RolesSection.model_fields:
        config["roles"][role] |= {"engine": "waiting", "structured": False}
    config["environment"] |= {"name": f"{__name__}:OneQuestion", "options": {}}
    config["rollout"] |= {"episodes": episodes, "max_steps": 1}
    config["pools"] |= {"shards": shards, "shared_gpu": False}
    return Config.model_validate(config)
