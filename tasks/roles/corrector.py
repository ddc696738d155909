"""The corrector: rewrites a thought so that it asserts nothing the student will not see (paper, appendix B.2)."""

from typing import Any

from tasks.runtime.context import StageContext
from tasks.text.correction import Rewrite
from tasks.text.formats import read_rewrite


async def rewrite(
    ctx: StageContext,
    template: str,
    *,
    adapter: str,
    request_key: str,
    attempt: int,
    **variables: Any,
) -> Rewrite:
    """One rewrite of a thought; an empty text where the request failed."""
    prompt = ctx.prompts.prompt("correct", template, **variables)
    answer = await ctx.roles.ask("correct", prompt, adapter=adapter, request_key=request_key, sample=attempt)
    return Rewrite(read_rewrite(answer.text), answer.generation, answer.reasoning)
