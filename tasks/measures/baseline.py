"""Success rate of a policy that does nothing or acts at random: the floor an evaluation is read against.

Doing nothing succeeds in some tasks (38% of tau-bench's airline tasks), luck in others.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from storage.files import replace_text, sha256_file
from tasks.environments.base import (
    Environment,
    EpisodeFailed,
    ListsActions,
    NamesNoOp,
    ReadsFiles,
    Task,
    closing,
)
from tasks.runtime.context import StageContext
from tasks.seeding import derive_seed

VERSION = 1  # increased when the code below computes another result
PLAYS = 10  # random episodes per task; the do-nothing policy needs one


class Baseline(BaseModel):
    """A policy without a model, and its success rate."""

    kind: Literal["random", "nothing"]
    success_rate: float


async def baseline(ctx: StageContext, tasks: Sequence[Task]) -> Baseline | None:
    """Success rate over tasks of the random policy, or of the do-nothing policy where no action can be drawn.

    Random actions are drawn from the legal ones, or else by `ActionFormat.sample`. The rate does not depend on the
    trained policy, so it is computed once and kept below the role client's `cache_dir`.

    Returns:
        None, with a line in the stage's log, if an episode failed, for instance because the environment model did not
        answer.
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
    """Whether an episode of up to `rollout.max_steps` actions succeeds; None if it failed."""
    episode_id = f"{ctx.config.run}/baseline/{task.task_id}/{number}"
    environment, success = ctx.new_environment(episode_id), False
    stream = random.Random(derive_seed(ctx.config.seed, "baseline", task.task_id, number))
    try:
        async with closing(environment):
            observation = await environment.reset(task)
            for _ in range(ctx.config.rollout.max_steps):
                outcome = await environment.step(_action(environment, observation, stream))
                success = success or outcome.success
                if outcome.done or outcome.truncated:
                    break
                observation = outcome.observation
    except EpisodeFailed as failure:
        ctx.log.warning("no baseline for this evaluation: task %s: %s", task.task_id, failure)
        return None
    finally:
        ctx.spoken.pop(episode_id, None)  # provenance for rows, which a baseline does not write
    return success


def _action(environment: Environment, observation: str, stream: random.Random) -> str:
    if isinstance(environment, ListsActions):
        return stream.choice(environment.legal_actions(observation))
    if environment.action_format.sample is not None:
        return environment.action_format.sample(stream)
    return environment.no_op if isinstance(environment, NamesNoOp) else ""


def _digest(ctx: StageContext, environment: Environment, tasks: Sequence[Task]) -> str:
    """Digest of everything that determines a baseline."""
    files = environment.files if isinstance(environment, ReadsFiles) else {}
    section = ctx.config.environment.model
    content: dict[str, Any] = {
        "version": VERSION,
        "environment": ctx.config.environment.model_dump(mode="json"),
        "environment_model": ctx.config.engines[section.engine].model_dump(mode="json") if section else None,
        "model": ctx.config.model.name if section else None,
        "files": {option: sha256_file(path) for option, path in files.items()},
        "tasks": [(task.task_id, task.seed) for task in tasks],
        "max_steps": ctx.config.rollout.max_steps,
        "seed": ctx.config.seed,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
