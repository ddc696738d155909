"""Choosing among n actions by what their rollouts amount to (natural-language reinforcement learning).

The evaluator reads k rollouts of an action at once and writes what they amount to: a value in words, without a verdict.
The refiner chooses among the actions of a state by these values.
"""

from collections.abc import Mapping, Sequence

from schemas.config import Config
from schemas.rows import Critique
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.best_of_n import chosen_action
from tasks.improvement.critique import failed
from tasks.improvement.refine import Improved
from tasks.prompting.role_prompts import Attempt
from tasks.roles.evaluator import aggregate
from tasks.roles.refiner import choose
from tasks.runtime.algorithm import Algorithm, Method, VerdictSource
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Bound


async def value(
    ctx: StageContext, row: Critique, transition: DrawnTransition, futures: list[str]
) -> Critique:
    """The value of an action in words. One that can't be read is a row with a status."""
    answer, evaluation = await aggregate(
        ctx, transition.state, row.action_text, futures, adapter="refiner", request_key=row.critique_id
    )
    row = row.model_copy(
        update={
            "critique": evaluation or "",
            "generation": answer.generation,
            "reasoning": answer.reasoning,
        }
    )
    if answer.error:
        return failed(row, "engine_error", answer.error)
    if evaluation is None:
        return failed(row, "unreadable_evaluation", "no text behind 'Evaluation:'")
    return row


async def choose_action(
    ctx: StageContext,
    tried: Sequence[Critique],
    transition: DrawnTransition,
    task: Task,
    futures: Mapping[str, list[str]],
) -> Improved:
    """The action that the refiner names, with the thought that the policy wrote; distilled if the environment would
    accept it. A choice that can't be read is a row with a status."""
    attempts = [Attempt(critique.action_text, None, critique.critique) for critique in tried]
    answer, number = await choose(
        ctx, transition.state, attempts, adapter="refiner", request_key=f"{tried[0].sample_id}/r/1"
    )
    row = await chosen_action(ctx, tried[number or 0], transition, task)
    row = row.model_copy(update={"generation": answer.generation, "reasoning": answer.reasoning})
    if number is None:
        fault = answer.error or f"the choice names none of the answers: {answer.text[:80]!r}"
        row = row.model_copy(
            update={
                "status": "unreadable_choice",
                "error": fault,
                "distil": False,
                "distil_reason": "failed",
            }
        )
    return Improved([row])


def choice_bound(config: Config, algorithm: Algorithm) -> Bound:
    """A choice in each state."""
    states = min(config.improvement.states, config.replay.transitions)
    return Bound(states, states * config.roles.refine.max_tokens, "a choice in each state")


AGGREGATED = VerdictSource(read=value, requests=1, scores=lambda config: 0, judges=False)
CHOSEN = Method(
    actions=lambda config: range(config.improvement.actions), improve=choose_action, bound=choice_bound
)
