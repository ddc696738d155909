"""Critiquing an action: k futures, then the evaluator's verdict.

Stage critique does it to the actions to improve, and `tasks.improvement.refine` to their refinements.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.rows import Critique, Future, Generation
<<<<<<< HEAD
from storage.history import State
from tasks.chat.messages import RequestError
=======
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.runtime.context import StageContext
from tasks.text.formats import Action


@dataclass(frozen=True)
class Candidate:
    """An action to be critiqued."""

    source: Literal["fresh", "replayed", "refined"]
    text: str
    parsed: Action
    generation: Generation | None
    error: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class CritiquedAction:
    """A critique and the futures that it read."""

    critique: Critique
    futures: list[Future]


async def critique_action(
    ctx: StageContext,
    sample_id: str,
    transition: DrawnTransition,
    task: Task,
    candidate: Candidate,
    round_: int,
    number: int | None = None,
) -> CritiquedAction:
    """Draw the action's futures, then read the verdict on them. A failed request is a row with a status.

    Args:
        ctx: the stage's context; its algorithm says where futures come from and how a verdict is read.
        sample_id: the draw that the action belongs to.
        transition: in its state s the action is taken.
        task: the task that s belongs to.
        candidate: the action.
        round_: 0, or the round of the refinement that is critiqued.
        number: of the action, where several are critiqued at a state.
    """
    critique_id = numbered(f"{sample_id}/c/{round_}", number)
    row = Critique(
        run=ctx.config.run,
        iteration=ctx.iteration,
        critique_id=critique_id,
        sample_id=sample_id,
        transition_id=transition.transition_id,
        round=round_,
        action_source=candidate.source,
        action_text=candidate.text,
        thought=candidate.parsed.thought,
        action=candidate.parsed.action,
        critique="",
        action_generation=candidate.generation,
        action_reasoning=candidate.reasoning,
    )
    if candidate.error or not candidate.text:
        return CritiquedAction(
            failed(row, "action_failed", candidate.error or "the policy wrote nothing"), []
        )
    how = ctx.algorithm.improves
    futures = await how.futures.draw(ctx, transition, task, candidate, critique_id)
    texts = [f.description for f in futures if f.status == "ok"]
    if not texts:
        return CritiquedAction(failed(row, "no_future", futures[0].error or "no future"), futures)
    return CritiquedAction(await how.verdict.read(ctx, row, transition, texts), futures)


<<<<<<< HEAD
async def _foresee(
    ctx: StageContext, state: State, task: Task, candidate: Candidate, critique_id: str
) -> list[Future]:
    """d1..dk ~ M_theta(.|s,a) with the new critic; without a critic, k rollouts of the policy."""
    if not ctx.config.has_critic:
        return await play_futures(ctx, task, state, candidate.text, candidate.parsed.action, critique_id)
    count = ctx.config.futures
    drawn = await predict_futures(
        ctx, state, candidate.text, count, adapter="critic", request_key=critique_id
    )
    return [
        _future_row(ctx, critique_id, number, answer, described)
        for number, (answer, described) in enumerate(drawn)
    ]


async def _scored(ctx: StageContext, row: Critique, state: State, futures: list[str]) -> Critique:
    try:
        yes = await yes_probability(
            ctx, state, row.action_text, futures, adapter="refiner", request_key=row.critique_id
        )
    except RequestError as error:
        return _failed(row, "score_failed", str(error))
    return row.model_copy(update={"yes_probability": yes, "optimal": yes > 0.5})


def _future_row(
    ctx: StageContext, critique_id: str, number: int, answer: Answer, described: FutureText
) -> Future:
    empty = answer.error is None and not described.description
    return Future(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="empty" if empty else answer.status,
        error=answer.fault if empty else answer.error,
        future_id=f"{critique_id}/f/{number}",
        critique_id=critique_id,
        thought=described.thought,
        description=described.description,
        malformed=described.malformed,
        source="successor",
        generation=answer.generation,
        reasoning=answer.reasoning,
    )


def _failed(row: Critique, status: str, error: str) -> Critique:
=======
def failed(row: Critique, status: str, error: str) -> Critique:
    """A critique without a verdict, and why."""
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
    return row.model_copy(update={"status": status, "error": error})


def numbered(key: str, number: int | None) -> str:
    """A key with the action's number, where several are critiqued at a state."""
    return key if number is None else f"{key}/{number}"
