"""The evaluator: q ~ E(.|s, a, d1..dk), a verdict and its reason; the probability of the verdict; or what the futures
amount to."""

import asyncio
import math

from storage.history import State
from tasks.prompting.role_prompts import aggregate_prompt, evaluate_prompt
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.runtime.stage import StageFailed
from tasks.text.formats import (
    Verdict,
    evaluation_regex,
    read_evaluation,
    read_verdict,
    verdict_regex,
    verdict_segments,
)


async def evaluate(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: list[str],
    *,
    adapter: str,
    request_key: str,
    verdict: bool | None = None,
) -> tuple[Answer, Verdict]:
    """q ~ E(.|s,a,d1..dk); the reason of `verdict`, where that is known. A format holds a structured answer to it;
    another evaluator is told."""
    section = ctx.config.roles.evaluate
    told = None if section.structured else verdict
    prompt = evaluate_prompt(ctx.prompts, state, action_text, futures, verdict=told)
    regex = verdict_regex(section.line_chars, verdict)
    answer = await ctx.roles.ask("evaluate", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_verdict(answer.text)


async def aggregate(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: list[str],
    *,
    adapter: str,
    request_key: str,
) -> tuple[Answer, str | None]:
    """What several futures of an action amount to, in words; None where the text lacks its format."""
    prompt = aggregate_prompt(ctx.prompts, state, action_text, futures)
    regex = evaluation_regex(ctx.config.roles.evaluate.line_chars)
    answer = await ctx.roles.ask("evaluate", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_evaluation(answer.text)


async def yes_probability(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: list[str],
    *,
    adapter: str,
    request_key: str,
    reason: str | None = None,
) -> float:
    """p("Optimal: yes") / (p("Optimal: yes") + p("Optimal: no")) under the evaluator's prompt, after `reason` where it
    has written one.

    Raises:
        RequestError: the request can't be scored.
        StageFailed: the evaluator's engine gives no log-probabilities.
    """
    prompt = evaluate_prompt(ctx.prompts, state, action_text, futures)

    async def logprob(verdict: bool) -> float:
        segments = verdict_segments(verdict, reason)
        scored = await ctx.roles.scores(
            "evaluate", prompt.messages, segments, adapter=adapter, request_key=request_key
        )
        if scored is None:
            raise StageFailed(
                "roles.evaluate.engine: the probability of a verdict needs an engine that scores; route the role to one"
            )
        return sum(scored.segments[1])  # the first segment is the same for both

    # Together, so that an engine reads the prompt once.
    logprobs = await asyncio.gather(logprob(True), logprob(False))
    yes, no = (math.exp(value - max(logprobs)) for value in logprobs)
    return yes / (yes + no)
