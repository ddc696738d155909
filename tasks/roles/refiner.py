"""The refiner: a_r ~ pi_r(.|s, earlier (action, critique) pairs), and its final choice among them."""

from storage.history import State
from tasks.prompting.role_prompts import Attempt, refine_prompt
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.text.formats import Action, action_regex, read_action, read_choice


async def refine(
    ctx: StageContext, state: State, attempts: list[Attempt], *, adapter: str, request_key: str
) -> tuple[Answer, Action]:
    """a_r ~ pi_r(.|s, earlier (action, critique) pairs)."""
    form = ctx.environment.action_format
    prompt = refine_prompt(ctx.prompts, state, attempts)
    regex = action_regex(form, ctx.config.roles.refine.line_chars)
    answer = await ctx.roles.ask("refine", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_action(answer.text, form)


async def choose(
    ctx: StageContext, state: State, attempts: list[Attempt], *, adapter: str, request_key: str
) -> tuple[Answer, int | None]:
    """The final choice among tried actions: an index into `attempts`; None where the answer names none of them."""
    prompt = ctx.prompts.prompt("refine", "choose", state=state, attempts=attempts)
    numbers = "|".join(str(n + 1) for n in range(len(attempts)))
    answer = await ctx.roles.ask(
        "refine", prompt, adapter=adapter, request_key=request_key, regex=f"(?:{numbers})"
    )
    return answer, read_choice(answer.text, len(attempts))
