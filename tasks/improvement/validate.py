"""Whether the environment accepts an action, and a proposed one as a row of table refinements."""

from typing import Literal

from schemas.rows import Critique, Refinement
from storage.history import State
from tasks.environments.base import EpisodeFailed, Task, closing, would_accept
from tasks.runtime.context import StageContext
from tasks.text.formats import Action, label_thought, read_action


async def accepted(
    ctx: StageContext, state: State, task: Task, action: Action, key: str
) -> tuple[str, str | None]:
    """Status and fault of an action: ok, invalid_action, or why the environment can't tell.

    Args:
        ctx: the stage's context.
        state: s.
        task: the task that s belongs to.
        action: as it was read.
        key: of what the environment model says meanwhile.
    """
    if not action.valid:
        return "invalid_action", "no whole action in its format"
    form = ctx.environment.action_format
    past = [read_action(turn.text, form).action for turn in state.turns]
    try:
        async with closing(ctx.new_environment(key)) as environment:
            valid = await would_accept(environment, task, past, state.observation, action.action)
    except EpisodeFailed as failure:
        return failure.status, str(failure)
    return ("ok", None) if valid else ("invalid_action", "the environment does not accept the action")


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
    proposal_id = f"{critique.sample_id}/r/{round_}"
    status, fault = await accepted(ctx, state, task, action, proposal_id)
    return Refinement(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status=status,
        error=fault,
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
        valid=status == "ok",
        changed=action.action != critique.action,
        distil=False,
    )
