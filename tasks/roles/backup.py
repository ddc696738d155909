"""The language Bellman backup: d ~ B(.|s, a, r, s', a', d')."""

from dataclasses import replace

from schemas.rows import BellmanTarget
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.prompting.role_prompts import BackupInputs, backup_prompt
from tasks.roles.answers import read_whole_future
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import Answer
from tasks.text.formats import FutureText, future_regex, one_line


async def write_backup(
    ctx: StageContext, read: BackupInputs, *, adapter: str, request_key: str
) -> tuple[Answer, FutureText]:
    """d ~ B(.|s,a,r,s',a',d'): a thought, then the description. One that the successor could not sample has a fault."""
    prompt = backup_prompt(ctx.prompts, read)
    regex = future_regex(ctx.config.roles.bootstrap.line_chars)
    answer = await ctx.roles.ask("bootstrap", prompt, adapter=adapter, request_key=request_key, regex=regex)
    future, limit = read_whole_future(ctx.config.roles.bootstrap, answer), ctx.config.roles.predict.line_limit
    if limit is not None and len(one_line(future.description)) > limit:
        fault = f"the description is longer than roles.predict.line_chars {limit}; raise it"
        future = replace(future, fault=future.fault or fault)
    return answer, future


def backup_inputs(target: BellmanTarget, transition: DrawnTransition) -> BackupInputs:
    """What the backup of a target reads."""
    return BackupInputs(
        state=transition.state,
        action_text=transition.text,
        next_observation=transition.next_observation,
        reward=transition.reward,
        terminal=transition.done,
        next_action_text=None if transition.done else target.next_action_text,
        next_future=None if transition.done else target.next_future,
    )


def other_backup_inputs(target: BellmanTarget, transition: DrawnTransition) -> list[BackupInputs]:
    """What it would read with each other (a', d') that was drawn; failed draws are left out."""
    read = backup_inputs(target, transition)
    return [
        replace(read, next_action_text=draw.next_action_text, next_future=draw.next_future)
        for draw in target.other_draws or ()
        if draw.status == "ok"
    ]
