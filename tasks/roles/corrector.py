"""The corrector: rewrites a thought so that it asserts nothing the student will not see (paper, appendix B.2)."""

from typing import Any

from tasks.roles.answers import cut_answer
from tasks.runtime.context import StageContext
from tasks.text.correction import Rewrite
from tasks.text.formats import label_thought, read_rewrite


async def rewrite(
    ctx: StageContext,
    template: str,
    *,
    adapter: str,
    request_key: str,
    attempt: int,
    line_limit: int | None,
    hidden: bool = False,
    **variables: Any,
) -> Rewrite:
    """One rewrite of a thought; an empty text where the request failed, or the rewrite was cut or is too long.

    Args:
        ctx: the stage's context.
        template: what the corrector is told.
        adapter: as for `RoleClient.ask`.
        request_key: as for `RoleClient.ask`.
        attempt: number of the rewrite.
        line_limit: of the student's lines.
        hidden: it is a hidden chain of thought, of any number of lines.
        variables: of the template.
    """
    prompt = ctx.prompts.prompt("correct", template, hidden=hidden, **variables)
    answer = await ctx.roles.ask("correct", prompt, adapter=adapter, request_key=request_key, sample=attempt)
    text = read_rewrite(answer.text, lines=hidden)
    first_line_is_whole = not hidden and "\n" in answer.text
    if cut_answer(ctx.config.roles.correct, answer) and not first_line_is_whole:
        text = ""
    return Rewrite(text if hidden else label_thought(text, line_limit), answer.generation, answer.reasoning)
