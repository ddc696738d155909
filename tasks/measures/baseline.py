"""What it is worth to do nothing, or anything, in an environment: the rate beside which a success rate is read.

Some tasks are won by doing nothing (of tau-bench's airline tasks 38%), others by luck.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from storage.files import replace_text, sha256_file
from tasks.environments.base import Environment, EpisodeFailed, ListsActions, NamesNoOp, ReadsFiles, Task
from tasks.runtime.context import StageContext
from tasks.seeding import derive_seed

VERSION = 1  # raised when the code below changes what it computes
PLAYS = 10  # random episodes of each task; nothing done twice is nothing


class Baseline(BaseModel):
    """A player without a model, and its success rate."""

    kind: Literal["random", "nothing"]
    success_rate: float


async def baseline(ctx: StageContext, tasks: Sequence[Task]) -> Baseline | None:
    """Success rate over tasks of random actions (the legal ones where the environment lists them, else out of its
    action format where that can be sampled), or of the action that does nothing.

    It does not depend on the policy, so it is kept below the role client's `cache_dir` and computed once. None, and a line
    in the stage's log, where a model that speaks in the environment could not be asked.
    """
    environment = ctx.environment
    unique = list(dict.fromkeys(tasks))
    kept = ctx.roles.cache_dir / "baselines" / f"{_digest(ctx, environment, unique)}.json"
    if kept.exists():
        return Baseline.model_validate_json(kept.read_text(encoding="utf-8"))
    is_random = isinstance(environment, ListsActions) or environment.action_format.sample is not None
    plays = range(PLAYS if is_random else 1)
    wins = await asyncio.gather(*(_play(ctx, task, number) for task in unique for number in plays))
    if None in wins:
        return None
    found = Baseline(kind="random" if is_random else "nothing", success_rate=wins.count(True) / len(wins))
    replace_text(kept, found.model_dump_json())
    return found


async def _play(ctx: StageContext, task: Task, number: int) -> bool | None:
    """Whether an episode of up to `rollout.max_steps` actions succeeds; None where it broke off."""
    episode_id = f"{ctx.config.run}/baseline/{task.task_id}/{number}"
    environment, success = ctx.new_environment(episode_id), False
    stream = random.Random(derive_seed(ctx.config.seed, "baseline", task.task_id, number))
    try:
        observation = await environment.reset(task)
        for _ in range(ctx.config.rollout.max_steps):
            outcome = await environment.step(_action(environment, observation, stream))
            success = success or outcome.success
            if outcome.done or outcome.truncated:
                break
            observation = outcome.observation
    except EpisodeFailed as failure:
        ctx.log.warning("no baseline beside this evaluation: task %s: %s", task.task_id, failure)
        return None
    finally:
        ctx.spoken.pop(episode_id, None)  # provenance for rows, and there are none
    return success


def _action(environment: Environment, observation: str, stream: random.Random) -> str:
    if isinstance(environment, ListsActions):
        return stream.choice(environment.legal_actions(observation))
    if environment.action_format.sample is not None:
        return environment.action_format.sample(stream)
    return environment.no_op if isinstance(environment, NamesNoOp) else ""


def _digest(ctx: StageContext, environment: Environment, tasks: Sequence[Task]) -> str:
    """Of all that determines a baseline."""
    files = environment.files if isinstance(environment, ReadsFiles) else {}
    speaks = ctx.config.environment.model
    content: dict[str, Any] = {
        "version": VERSION,
        "environment": ctx.config.environment.model_dump(mode="json"),
        "environment_model": ctx.config.engines[speaks.engine].model_dump(mode="json") if speaks else None,
        "model": ctx.config.model.name if speaks else None,
        "files": {option: sha256_file(path) for option, path in files.items()},
        "tasks": [(task.task_id, task.seed) for task in tasks],
        "max_steps": ctx.config.rollout.max_steps,
        "seed": ctx.config.seed,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
