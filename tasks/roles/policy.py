"""The policy: a ~ pi(.|s)."""

import random

from storage.history import State
from tasks.environments.base import Environment, ListsActions
from tasks.prompting.role_prompts import policy_prompt
from tasks.roles.answers import read_whole_action
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.text.formats import Action, action_regex, write_action

UNIFORM = "uniform"


async def sample_action(
    ctx: StageContext, state: State, *, adapter: str, request_key: str, uniform: float = 0.0
) -> tuple[Answer, Action]:
    """a ~ pi(.|s) under the plain policy prompt; with probability `uniform`, a random legal action instead.

    An action that max_tokens cut is not valid. Of one whose thought filled its line, the label leaves the thought out
    (`tasks.text.formats.label_thought`).
    """
    form = ctx.environment.action_format
    if uniform:
        stream = random.Random(ctx.roles.seed(UNIFORM, request_key))
        if stream.random() < uniform:
            return _uniform_action(ctx.environment, state, stream)
    regex = action_regex(form, ctx.config.roles.policy.line_chars)
    prompt = policy_prompt(ctx.prompts, state)
    answer = await ctx.roles.ask("policy", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_whole_action(answer.text, answer.generation, form)


def _uniform_action(environment: Environment, state: State, stream: random.Random) -> tuple[Answer, Action]:
    """An action drawn uniformly from the legal ones. No model wrote it, so it has no Generation."""
    if not isinstance(environment, ListsActions):
        raise TypeError(f"{environment.name} does not list its legal actions; check_config refuses this")
    action = stream.choice(environment.legal_actions(state.observation))
    return Answer(write_action("", action), None, None, None), Action("", action, valid=True)
