"""The successor model: d ~ M(.|s, a), the future of an action as text."""

import asyncio

from storage.history import State
from tasks.prompting.role_prompts import predict_prompt
from tasks.roles.answers import read_whole_future
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.text.formats import FutureText, future_regex


async def predict_futures(
    ctx: StageContext, state: State, action_text: str, count: int, *, adapter: str, request_key: str
) -> list[tuple[Answer, FutureText]]:
    """d1..dk ~ M(.|s,a), under one rendered prompt."""
    prompt = predict_prompt(ctx.prompts, state, action_text)
    regex = future_regex(ctx.config.roles.predict.line_chars)

    async def one(sample: int) -> tuple[Answer, FutureText]:
        answer = await ctx.roles.ask(
            "predict", prompt, adapter=adapter, request_key=request_key, sample=sample, regex=regex
        )
        return answer, read_whole_future(ctx.config.roles.predict, answer)

    return list(await asyncio.gather(*(one(number) for number in range(count))))
