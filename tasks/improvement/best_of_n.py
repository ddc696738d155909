"""Algorithm nlql, Q-learning in language without refinement: of n sampled actions distil the one valued highest.

The value of an action is the evaluator's probability of "Optimal: yes" against "Optimal: no", given k futures. It is
scored, not sampled: no verdict is written.
"""

import math
from collections.abc import Sequence

from schemas.rows import Critique, Refinement
from storage.history import State
from tasks.environments.base import Task
from tasks.improvement.proposal import make_proposal
from tasks.roles.calls import evaluate_prompt
from tasks.runtime.context import StageContext
from tasks.runtime.stage import StageFailed
from tasks.text.formats import read_action


async def yes_probability(
    ctx: StageContext, state: State, action_text: str, futures: list[str], *, adapter: str, request_key: str
) -> float:
    """p(yes) / (p(yes) + p(no)) of the verdict under the evaluate prompt.

    Raises:
        RequestError: the request can't be scored.
        StageFailed: the evaluator's engine gives no log-probabilities.
    """
    prompt = evaluate_prompt(ctx, state, action_text, futures)
    logprobs = []
    for verdict in ("yes", "no"):
        segments = ("Optimal:", f" {verdict}")
        scored = await ctx.score(
            "evaluate", prompt.messages, segments, adapter=adapter, request_key=request_key
        )
        if scored is None:
            raise StageFailed(
                "roles.evaluate.engine: algorithm nlql needs an engine that scores; route the role to one"
            )
        logprobs.append(sum(scored[1]))  # the first segment is the same for both
    yes, no = (math.exp(value - max(logprobs)) for value in logprobs)
    return yes / (yes + no)


async def best_action(ctx: StageContext, tried: Sequence[Critique], state: State, task: Task) -> Refinement:
    """The tried action of the highest `yes_probability`, the first of equals, its thought as the policy wrote it;
    distilled if the environment would accept it."""
    best = max(tried, key=lambda critique: critique.yes_probability or 0.0)
    row = await make_proposal(
        ctx,
        best,
        state,
        task,
        round_=1,
        kind="chosen",
        text=best.action_text,
        action=read_action(best.action_text, ctx.environment.action_format),
    )
    return row.model_copy(
        update={
            "distil": row.status == "ok",
            "generation": best.action_generation,
            "reasoning": best.action_reasoning,
        }
    )
