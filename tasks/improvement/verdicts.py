"""The evaluator's verdict: written with its reason, or scored as a probability."""

from schemas.rows import Critique
from tasks.chat.messages import RequestError
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.improvement.critique import failed
from tasks.roles.evaluator import evaluate, yes_probability
from tasks.runtime.algorithm import VerdictSource
from tasks.runtime.context import StageContext


async def write(
    ctx: StageContext, row: Critique, transition: DrawnTransition, futures: list[str]
) -> Critique:
    """q ~ E(.|s,a,d1..dk). A verdict that can't be read is a row with a status."""
    answer, verdict = await evaluate(
        ctx,
        transition.state,
        row.action_text,
        futures,
        adapter="refiner",
        request_key=row.critique_id,
    )
    row = row.model_copy(
        update={
            "optimal": verdict.optimal,
            "critique": verdict.reason,
            "generation": answer.generation,
            "reasoning": answer.reasoning,
        }
    )
    if answer.error:
        return failed(row, "engine_error", answer.error)
    if verdict.optimal is None:
        return failed(row, "unreadable_verdict", "neither 'Optimal: yes' nor 'Optimal: no'")
    return row


async def score(
    ctx: StageContext, row: Critique, transition: DrawnTransition, futures: list[str]
) -> Critique:
    """The probability of "Optimal: yes"; no verdict is written."""
    try:
        yes = await yes_probability(
            ctx,
            transition.state,
            row.action_text,
            futures,
            adapter="refiner",
            request_key=row.critique_id,
        )
    except RequestError as error:
        return failed(row, "score_failed", str(error))
    return row.model_copy(update={"yes_probability": yes, "optimal": yes > 0.5})


WRITTEN = VerdictSource(read=write, requests=1)
SCORED = VerdictSource(read=score, requests=0)
