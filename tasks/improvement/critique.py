"""Critiquing an action: k futures, then the evaluator's verdict.

Stage critique critiques the actions to improve. `tasks.improvement.refine` critiques their refinements.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.rows import Critique, Future, Generation
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


def failed(row: Critique, status: str, error: str) -> Critique:
    """A critique without a verdict, and why."""
    return row.model_copy(update={"status": status, "error": error})


def numbered(key: str, number: int | None) -> str:
    """A key with the action's number, where several are critiqued at a state."""
    return key if number is None else f"{key}/{number}"
