"""A proposed action as a row of table refinements, and whether the environment accepts it."""

from typing import Literal

from schemas.rows import Critique, Refinement
from storage.history import State
from tasks.environments.base import EpisodeFailed, Task, would_accept
from tasks.runtime.context import StageContext
from tasks.text.formats import Action, label_thought, read_action


async def make_proposal(
    ctx: StageContext,
    critique: Critique,
    state: State,
    task: Task,
    *,
    round_: int,
    kind: Literal["kept", "refined", "chosen"],
    text: str,
    action: Action,
    answers_to: str | None = None,
) -> Refinement:
    """A proposal, not yet marked for distillation; status invalid_action where it would not be accepted.

    Args:
        ctx: the stage's context.
        critique: of the action we began with.
        state: s.
        task: the task that s belongs to.
        round_: 1..m, or m+1 for the final choice.
        kind: how it came about.
        text: the proposal as it was written.
        action: the same, read.
        answers_to: the critique it answers, where that is another one.
    """
    form = ctx.environment.action_format
    past = [read_action(turn.text, form).action for turn in state.turns]
    proposal_id = f"{critique.sample_id}/r/{round_}"
    status, fault = "invalid_action", "no whole action in its format"
    valid = action.valid
    if valid:
        fault = "the environment does not accept the action"
        try:
            environment = ctx.new_environment(proposal_id)
            valid = await would_accept(environment, task, past, state.observation, action.action)
        except EpisodeFailed as failure:
            valid, status, fault = False, failure.status, str(failure)
    return Refinement(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="ok" if valid else status,
        error=None if valid else fault,
        refinement_id=proposal_id,
        critique_id=answers_to or critique.critique_id,
        sample_id=critique.sample_id,
        transition_id=critique.transition_id,
        round=round_,
        kind=kind,
        action_text=text,
        thought_before=action.thought,
        thought=label_thought(action.thought, ctx.config.roles.policy.line_limit),
        action=action.action,
        valid=valid,
        changed=action.action != critique.action,
        distil=False,
    )
