"""A judgement of an action: k futures, then the evaluator's critique, or the probability of its verdict.

Shared by the critique of actions to improve (`tasks.stages.critique`) and of their refinements
(`tasks.improvement.refine`).
"""

from dataclasses import dataclass
from typing import Literal

from schemas.rows import Critique, Future, Generation
from storage.history import State
from tasks.chat.messages import RequestError
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.best_of_n import yes_probability
from tasks.improvement.monte_carlo import play_futures
from tasks.roles.calls import evaluate, predict_futures
from tasks.runtime.context import Answer, StageContext
from tasks.text.formats import Action, FutureText


@dataclass(frozen=True)
class Candidate:
    """An action to be judged."""

    source: Literal["fresh", "replayed", "refined"]
    text: str
    parsed: Action
    generation: Generation | None
    error: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class CritiquedAction:
    """A critique and the futures it read."""

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
    """Foresee d1..dk, then q ~ E(.|s,a,d1..dk), or the probability of its verdict.

    A failed request or a verdict that can't be read is a row with a status.

    Args:
        ctx: the stage's context.
        sample_id: the draw it belongs to.
        transition: in whose state s the action is taken.
        task: the task that s belongs to.
        candidate: the action.
        round_: 0, or the number of the refinement that is judged.
        number: of the action, where several are judged.
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
            _failed(row, "action_failed", candidate.error or "the policy wrote nothing"), []
        )
    state = transition.state
    futures = await _foresee(ctx, state, task, candidate, critique_id)
    texts = [f.description for f in futures if f.status == "ok"]
    if not texts:
        return CritiquedAction(_failed(row, "no_future", futures[0].error or "no future"), futures)
    if ctx.config.algorithm == "nlql":
        return CritiquedAction(await _scored(ctx, row, state, texts), futures)
    judged, verdict = await evaluate(
        ctx, state, candidate.text, texts, adapter="refiner", request_key=critique_id
    )
    row = row.model_copy(
        update={
            "optimal": verdict.optimal,
            "critique": verdict.reason,
            "generation": judged.generation,
            "reasoning": judged.reasoning,
        }
    )
    if judged.error:
        return CritiquedAction(_failed(row, "engine_error", judged.error), futures)
    if verdict.optimal is None:
        return CritiquedAction(
            _failed(row, "unreadable_verdict", "neither 'Optimal: yes' nor 'Optimal: no'"), futures
        )
    return CritiquedAction(row, futures)


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
    return row.model_copy(update={"status": status, "error": error})


def numbered(key: str, number: int | None) -> str:
    """An id with the action's number, where several are judged at a state."""
    return key if number is None else f"{key}/{number}"
