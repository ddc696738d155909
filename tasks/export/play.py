"""Plays one episode for people to read, as in rollout and evaluation. Nothing is stored."""

from collections.abc import Iterator
from pathlib import Path

from tasks.algorithms import algorithm_of
from tasks.environments import make_environment
from tasks.environments.base import Task, Unplayable
from tasks.environments.splits import own_validation_tasks
from tasks.export.policy import Policy
from tasks.roles.episode import EpisodeResult, play_episode
from tasks.runtime.context import stage_context
from tasks.runtime.stage import Inputs, StageFailed


def choose_task(policy: Policy, task_id: str | None, seed: int | None) -> Task:
    """The task to play.

    Args:
        policy: its configuration names the environment.
        task_id: a task of any split; None takes the eval task with number `seed`.
        seed: 0 if None.

    Raises:
        StageFailed: there is no such task.
    """
    environment = make_environment(policy.config.environment)
    if isinstance(environment, Unplayable):
        raise StageFailed(environment.unplayable)
    held_out = environment.tasks("eval")
    if task_id is None:
        return held_out[(seed or 0) % len(held_out)]
    for task in (*held_out, *own_validation_tasks(environment), *environment.tasks("train")):
        if task.task_id == task_id:
            return task
    some = ", ".join(task.task_id for task in held_out[:3])
    raise StageFailed(
        f"--task {task_id}: environment {environment.name} has no such task (it has {some}, ...)"
    )


async def play(
    policy: Policy, task_id: str | None = None, seed: int | None = None, *, cache_dir: Path
) -> EpisodeResult:
    """Play one episode.

    Args:
        policy: the player.
        task_id: see `choose_task`.
        seed: root of the policy's random stream, and choice of the task; None takes the configuration's.
        cache_dir: for the engines' own caches.

    Raises:
        StageFailed: there is no such task.
        RequestError: the model can't be loaded.
    """
    task = choose_task(policy, task_id, seed)
    config = policy.config if seed is None else policy.config.model_copy(update={"seed": seed})
    inputs = Inputs(adapters={"policy": policy.adapter})
    ctx = stage_context(
        config, algorithm_of(config), "play", inputs, cache_dir, iteration=policy.iteration or 0
    )
    try:
        episode_id = f"{config.run}/play/{task.task_id}"
        return await play_episode(ctx, task, episode_id, key=episode_id)
    finally:
        await ctx.roles.close()


def describe(result: EpisodeResult) -> Iterator[str]:
    """The episode as lines of text: every turn, then the result."""
    episode = result.episode
    yield f"{episode.environment}, task {episode.task_id}, played by {episode.policy_version}"
    for row in result.transitions:
        yield f"\n--- step {row.step}: the policy sees\n{row.observation}"
        yield f"--- it writes\n{row.raw_action}"
        taken = row.action if row.action_valid else f"{row.action!r}, which the environment does not accept"
        yield f"--- action: {taken}"
    if result.transitions:
        yield f"\n--- at the end it sees\n{result.transitions[-1].next_observation}"
    if episode.error:
        yield f"\nbroken off: {episode.error}"
    ending = "success" if episode.success else "failure" if episode.done else "cut off by rollout.max_steps"
    yield (
        f"\n{ending} after {episode.steps} steps; reward {episode.reward:g}, the game's own "
        f"{episode.game_reward:g}, {episode.invalid_actions} invalid actions"
    )
