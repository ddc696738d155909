"""Monte-Carlo rollouts: k futures of an action, played to their end by the current policy and written as text.

The environment gets back to s by playing the episode's actions again, so it must be `replayable`.
"""

import asyncio

from schemas.rows import Future
from storage.history import State
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Environment, EpisodeFailed, Step, Task, closing
from tasks.foreign_json import whole_text
from tasks.improvement.critique import Candidate
from tasks.roles.policy import UNIFORM, sample_action
from tasks.runtime.algorithm import FutureSource
from tasks.runtime.context import StageContext
from tasks.text.formats import read_action
from tasks.text.transcript import Ending, Transcript, write_transcript


async def play(
    ctx: StageContext, transition: DrawnTransition, task: Task, candidate: Candidate, critique_id: str
) -> list[Future]:
    """k episodes played on from (s, a), each with random streams of its own.

    Args:
        ctx: the stage's context; its inputs hold the adapter "policy".
        transition: its state is s.
        task: the task that s belongs to.
        candidate: a.
        critique_id: the critique that reads the futures.
    """
    numbers = range(ctx.algorithm.future_count(ctx.config))
    futures = (_play_future(ctx, task, transition.state, candidate, critique_id, n) for n in numbers)
    return list(await asyncio.gather(*futures))


async def _play_future(
    ctx: StageContext, task: Task, state: State, candidate: Candidate, critique_id: str, number: int
) -> Future:
    row = _future(ctx, critique_id, number)
    try:
        async with closing(ctx.new_environment(row.future_id)) as environment:
            return await _play_on(ctx, environment, task, state, candidate.text, candidate.parsed.action, row)
    except EpisodeFailed as failure:
        return row.model_copy(update={"status": failure.status, "error": str(failure)})


def _future(ctx: StageContext, critique_id: str, number: int) -> Future:
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    return Future(
        run=ctx.config.run,
        iteration=ctx.iteration,
        future_id=f"{critique_id}/f/{number}",
        critique_id=critique_id,
        thought="",
        description="",
        malformed=False,
        source="rollout",
        policy_version=UNIFORM if uniform else ctx.roles.model_version("policy", "policy"),
    )


async def _play_on(
    ctx: StageContext, environment: Environment, task: Task, state: State, text: str, action: str, row: Future
) -> Future:
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    form = ctx.environment.action_format
    seen = whole_text(await environment.reset(task))
    for turn in state.turns:
        seen = (await environment.step(read_action(turn.text, form).action)).observation
    if seen != state.observation:
        error = "the same actions did not lead back to the state; is the environment replayable?"
        return row.model_copy(update={"status": "not_replayed", "error": error})
    observations: list[str] = []
    actions: list[str] = []
    reward = 0.0
    while True:
        outcome = await environment.step(action)
        by_success = ctx.config.environment.reward == "success"
        reward += float(outcome.success) if by_success else outcome.reward
        observations.append(outcome.observation)
        if outcome.done or outcome.truncated or len(state.turns) + 1 >= ctx.config.rollout.max_steps:
            played = Transcript(observations, actions, _ending(outcome), reward)
            return row.model_copy(update={"description": write_transcript(played)})
        state = state.after(text, outcome.observation)
        request_key = f"{row.future_id}/{len(state.turns):03d}"
        answer, parsed = await sample_action(
            ctx, state, adapter="policy", request_key=request_key, uniform=uniform
        )
        if answer.error:
            return row.model_copy(update={"status": answer.status, "error": answer.error})
        text, action = answer.text, parsed.action
        actions.append(action)


def _ending(last: Step) -> Ending:
    """How a rollout ended, by the task's own rules or by a cap."""
    if not last.done:
        return "cut_off"
    return "success" if last.success else "failure"


PLAYED = FutureSource(
    draw=play, parameters="policy", role="policy", count=4, requests=lambda config: config.rollout.max_steps
)
