"""An episode: the policy plays one task in an environment of its own. Rollout, evaluation and `nlac play` share it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.rows import Episode, Split, Transition
from storage.history import State
from tasks.environments.base import EpisodeFailed, Task, closing
from tasks.foreign_json import whole_text
from tasks.roles.policy import UNIFORM, sample_action
from tasks.runtime.context import StageContext


@dataclass(frozen=True)
class EpisodeResult:
    """An episode and its steps."""

    episode: Episode
    transitions: list[Transition]


async def play_episode(
    ctx: StageContext,
    task: Task,
    episode_id: str,
    *,
    key: str,
    split: Split | None = None,
    group_id: str | None = None,
    uniform: float = 0.0,
    show: Callable[[Transition], object] | None = None,
) -> EpisodeResult:
    """Play one episode with the policy, or with random legal actions in a share of steps (`uniform`).

    The environment's own end is `done`; reaching `rollout.max_steps` is `truncated`. A request that the
    engine refuses ends the episode with status engine_error, one of the environment model with speaker_error (an
    answer that can't be read: speaker_unreadable), an environment that breaks with environment_error: its last step is
    not there, the earlier ones are truncated.

    Args:
        ctx: the stage's context.
        task: what to play.
        episode_id: of the episode's row.
        key: of its random streams, unique in the stage; the same in another run or evaluation, so that those are
            compared pairwise.
        split: of the rows; by default the task's, which is train for a lent validation task.
        group_id: of the episodes of the same draw of a task.
        uniform: share of steps.
        show: told of each step as soon as it is made.
    """
    environment = ctx.new_environment(key)
    config, reward_is_success = ctx.config, ctx.config.environment.reward == "success"
    version = ctx.roles.model_version("policy", "policy")
    split = split or task.split
    rows: list[Transition] = []
    status, error, steps = "ok", None, config.rollout.max_steps
    async with closing(environment):
        try:
            state = State((), whole_text(await environment.reset(task)))
        except EpisodeFailed as failure:
            status, error, steps = failure.status, str(failure), 0
        for step in range(steps):
            transition_id = f"{episode_id}/{step:03d}"
            request_key = f"{key}/{step:03d}"
            answer, action = await sample_action(
                ctx, state, adapter="policy", request_key=request_key, uniform=uniform
            )
            if answer.error is not None:
                status, error = answer.status, answer.error
                break
            try:
                outcome = await environment.step(action.action)
            except EpisodeFailed as failure:
                status, error = failure.status, str(failure)
                break
            truncated = not outcome.done and (outcome.truncated or step + 1 == config.rollout.max_steps)
            rows.append(
                Transition(
                    run=config.run,
                    iteration=ctx.iteration,
                    status=outcome.status,
                    error=outcome.error,
                    transition_id=transition_id,
                    episode_id=episode_id,
                    split=split,
                    step=step,
                    task_id=task.task_id,
                    observation=state.observation,
                    raw_action=answer.text,
                    thought=action.thought,
                    reasoning=answer.reasoning,
                    action=action.action,
                    action_valid=action.valid and outcome.valid,
                    next_observation=outcome.observation,
                    reward=float(outcome.success) if reward_is_success else outcome.reward,
                    game_reward=outcome.reward,
                    success=outcome.success,
                    done=outcome.done,
                    truncated=truncated,
                    policy_version=version if answer.generation else UNIFORM,
                    token_ids=list(answer.completion.token_ids) if answer.completion else [],
                    logprobs=list(answer.completion.logprobs) if answer.completion else [],
                    end_token_id=answer.completion.end_token_id if answer.completion else None,
                    end_logprob=answer.completion.end_logprob if answer.completion else None,
                    generation=answer.generation,
                    speaker_generations=ctx.spoken.pop(key, None),
                    database_reward=outcome.info.get("database_reward"),
                    outputs_reward=outcome.info.get("outputs_reward"),
                )
            )
            if show is not None:
                show(rows[-1])
            if outcome.done or truncated:
                break
            state = state.after(answer.text, outcome.observation)
    ctx.spoken.pop(key, None)  # of a step that is not there
    if error is not None and rows:
        rows[-1] = rows[-1].model_copy(update={"truncated": True})
    episode = Episode(
        run=config.run,
        iteration=ctx.iteration,
        status=status,
        error=error,
        episode_id=episode_id,
        split=split,
        environment=environment.name,
        task_id=task.task_id,
        seed=task.seed,
        policy_version=version,
        steps=len(rows),
        reward=sum(r.reward for r in rows),
        game_reward=sum(r.game_reward for r in rows),
        success=any(r.success for r in rows),
        done=any(r.done for r in rows),
        truncated=any(r.truncated for r in rows),
        invalid_actions=sum(not r.action_valid for r in rows),
        group_id=group_id,
    )
    return EpisodeResult(episode, rows)


async def play_all(
    ctx: StageContext, tasks: Mapping[Split, Sequence[Task]], repeats: int
) -> list[EpisodeResult]:
    """Play an episode a task of each split, all concurrently, each in an environment of its own; training episodes
    explore.

    Args:
        ctx: the stage's context.
        tasks: each `repeats` times in a row, as `repeated` lists them.
        repeats: episodes of a group.
    """

    async def play(numbered: tuple[Split, int, Task]) -> EpisodeResult:
        split, number, task = numbered
        explores = split == "train"
        uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=True) if explores else 0.0
        key, place = f"{split}/{number:05d}", f"{ctx.config.run}/{ctx.iteration:05d}"
        group_id = f"{place}/{split}/g/{number // repeats:05d}"
        return await play_episode(
            ctx, task, f"{place}/{key}", key=key, split=split, group_id=group_id, uniform=uniform
        )

    numbered = [(split, number, task) for split in tasks for number, task in enumerate(tasks[split])]
    return await ctx.map(numbered, play, "episodes", cost=lambda _: 1.0)  # nobody knows an episode's length


def repeated(tasks: Iterable[Task], repeats: int) -> list[Task]:
    """Each task `repeats` times in a row."""
    return [task for task in tasks for _ in range(repeats)]


def episode_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Success rate, mean reward and turns, share of invalid actions; over episodes played to an end."""
    played = [r.episode for r in results if r.episode.status == "ok"]
    turns = sum(e.steps for e in played)
    if not played:
        return {"episodes": 0.0}
    return {
        "episodes": float(len(played)),
        "success_rate": sum(e.success for e in played) / len(played),
        "mean_reward": sum(e.reward for e in played) / len(played),
        "mean_game_reward": sum(e.game_reward for e in played) / len(played),
        "mean_turns": turns / len(played),
        "invalid_action_rate": sum(e.invalid_actions for e in played) / max(turns, 1),
    }
