"""Plays one episode for people to read as it goes, as in rollout and evaluation. Nothing is stored."""

from collections.abc import Callable, Sequence
from pathlib import Path

from schemas.rows import Episode, Transition
from tasks.algorithms import algorithm_of
from tasks.environments import make_environment
from tasks.environments.base import Task, Unplayable
from tasks.environments.splits import own_validation_tasks
from tasks.export.policy import Policy
from tasks.roles.episode import play_episode
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
    policy: Policy,
    task_id: str | None = None,
    seed: int | None = None,
    *,
    cache_dir: Path,
    show: Callable[[str], object],
) -> Episode:
    """Play one episode.

    Args:
        policy: the player.
        task_id: see `choose_task`.
        seed: root of the policy's random stream, and choice of the task; None takes the configuration's.
        cache_dir: for the engines' own caches.
        show: told what happens, as it happens, in paragraphs.

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
        version = ctx.roles.model_version("policy", "policy")
        show(f"{ctx.environment.name}, task {task.task_id}, played by {version}")
        result = await play_episode(
            ctx, task, episode_id, key=episode_id, show=lambda row: show(describe_step(row))
        )
        show(describe_end(result.episode, result.transitions))
        return result.episode
    finally:
        await ctx.roles.close()


def describe_step(row: Transition) -> str:
    """One step as text."""
    taken = row.action if row.action_valid else f"{row.action!r}, which the environment does not accept"
    return (
        f"\n--- step {row.step}: the policy sees\n{row.observation}\n--- it writes\n{row.raw_action}\n"
        f"--- action: {taken}"
    )


def describe_end(episode: Episode, steps: Sequence[Transition]) -> str:
    """How an episode ended, as text."""
    seen = f"\n--- at the end it sees\n{steps[-1].next_observation}\n" if steps else ""
    broken = f"\nbroken off: {episode.error}\n" if episode.error else ""
    ending = "success" if episode.success else "failure" if episode.done else "cut off by rollout.max_steps"
    return (
        f"{seen}{broken}\n{ending} after {episode.steps} steps; reward {episode.reward:g}, the game's own "
        f"{episode.game_reward:g}, {episode.invalid_actions} invalid actions"
    )
