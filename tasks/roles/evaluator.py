"""The evaluator: q ~ E(.|s, a, d1..dk), a verdict and its reason; or the probability of the verdict."""

import math

from storage.history import State
from tasks.prompting.role_prompts import evaluate_prompt
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.runtime.stage import StageFailed
from tasks.text.formats import Verdict, read_verdict, verdict_regex


async def evaluate(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: list[str],
    *,
    adapter: str,
    request_key: str,
) -> tuple[Answer, Verdict]:
    """q ~ E(.|s,a,d1..dk)."""
    prompt = evaluate_prompt(ctx.prompts, state, action_text, futures)
    regex = verdict_regex(ctx.config.roles.evaluate.line_chars)
    answer = await ctx.roles.ask("evaluate", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_verdict(answer.text)


async def yes_probability(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: list[str],
    *,
    adapter: str,
    request_key: str,
) -> float:
    """p("Optimal: yes") / (p("Optimal: yes") + p("Optimal: no")) under the evaluator's prompt.

    Raises:
        RequestError: the request can't be scored.
        StageFailed: the evaluator's engine gives no log-probabilities.
    """
    prompt = evaluate_prompt(ctx.prompts, state, action_text, futures)
    logprobs = []
    for verdict in ("yes", "no"):
        segments = ("Optimal:", f" {verdict}")
        scored = await ctx.roles.scores(
            "evaluate", prompt.messages, segments, adapter=adapter, request_key=request_key
        )
        if scored is None:
            raise StageFailed(
                f"roles.evaluate.engine: algorithm {ctx.algorithm.name} needs an engine that scores; route the role to "
                "one"
            )
        logprobs.append(sum(scored.segments[1]))  # the first segment is the same for both
    yes, no = (math.exp(value - max(logprobs)) for value in logprobs)
    return yes / (yes + no)
