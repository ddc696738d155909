"""Futures that the critic predicts: d1..dk ~ M_theta(.|s, a), and the one that says nothing."""

from schemas.rows import Future
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.critique import Candidate
from tasks.roles.successor import predict_futures
from tasks.runtime.algorithm import FutureSource
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.text.formats import FutureText


async def predict(
    ctx: StageContext, transition: DrawnTransition, task: Task, candidate: Candidate, critique_id: str
) -> list[Future]:
    """k futures of an action by the new critic. A failed request or an empty text is a row with a status."""
    count = ctx.algorithm.future_count(ctx.config)
    drawn = await predict_futures(
        ctx, transition.state, candidate.text, count, adapter="critic", request_key=critique_id
    )
    return [_row(ctx, critique_id, number, *answered) for number, answered in enumerate(drawn)]


def _row(ctx: StageContext, critique_id: str, number: int, answer: Answer, future: FutureText) -> Future:
    empty = answer.error is None and not future.description
    return Future(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="empty" if empty else answer.status,
        error=answer.fault if empty else answer.error,
        future_id=f"{critique_id}/f/{number}",
        critique_id=critique_id,
        thought=future.thought,
        description=future.description,
        malformed=future.malformed,
        source="successor",
        generation=answer.generation,
        reasoning=answer.reasoning,
    )


PREDICTED = FutureSource(
    draw=predict, parameters="critic", role="predict", count=1, requests=lambda config: 1
)


async def foresee_nothing(
    ctx: StageContext, transition: DrawnTransition, task: Task, candidate: Candidate, critique_id: str
) -> list[Future]:
    """One future that tells nothing, written by nobody."""
    return [
        Future(
            run=ctx.config.run,
            iteration=ctx.iteration,
            future_id=f"{critique_id}/f/0",
            critique_id=critique_id,
            thought="",
            description="unknown",
            malformed=False,
            source="none",
        )
    ]


UNFORESEEN = FutureSource(
    draw=foresee_nothing, parameters="policy", role="policy", count=1, requests=lambda config: 0
)
