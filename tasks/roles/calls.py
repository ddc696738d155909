"""The roles, each as one call: prompt, format and reading put together, the same way in every stage."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from storage.history import State
from tasks.environments.base import Environment, ListsActions
from tasks.prompting.truncation import Prompt
from tasks.runtime.context import Answer, StageContext
from tasks.text.correction import Rewrite
from tasks.text.formats import (
    Action,
    FutureText,
    Verdict,
    action_regex,
    future_regex,
    read_action,
    read_future,
    read_rewrite,
    read_verdict,
    verdict_regex,
    write_action,
)

UNIFORM = "uniform"


@dataclass(frozen=True)
class Attempt:
    """An action with its critique, as the refiner's prompt lists them."""

    action_text: str
    optimal: bool
    critique: str


async def sample_action(
    ctx: StageContext, state: State, *, adapter: str, request_key: str, uniform: float = 0.0
) -> tuple[Answer, Action]:
    """a ~ pi(.|s) under the plain policy prompt; with probability `uniform`, a random legal action instead."""
    form = ctx.environment.action_format
    if uniform:
        stream = random.Random(ctx.seed(UNIFORM, request_key))
        if stream.random() < uniform:
            return _uniform_action(ctx.environment, state, stream)
    regex = action_regex(form, ctx.role("policy").line_chars)
    prompt = ctx.prompt("policy", "policy", state=state)
    answer = await ctx.ask("policy", "policy", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_action(answer.text, form)


def _uniform_action(environment: Environment, state: State, stream: random.Random) -> tuple[Answer, Action]:
    """An action drawn uniformly from the legal ones; no model wrote it, so it has no Generation."""
    if not isinstance(environment, ListsActions):
        raise TypeError(f"{environment.name} does not list its legal actions; check_config refuses this")
    action = stream.choice(environment.legal_actions(state.observation))
    return Answer(write_action("", action), None, None, None), Action("", action, valid=True)


def predict_prompt(
    ctx: StageContext, state: State, action_text: str, *, label: tuple[str, ...] = (), trains: bool = False
) -> Prompt:
    """The predict prompt, which shows (s, a) alone; the critic is trained under it."""
    shown = {"state": state, "action_text": action_text}
    return ctx.prompt("predict", "predict", label=label, trains=trains, **shown)


async def predict_futures(
    ctx: StageContext, state: State, action_text: str, count: int, *, adapter: str, request_key: str
) -> list[tuple[Answer, FutureText]]:
    """d1..dk ~ M(.|s,a), under one rendered prompt."""
    prompt = predict_prompt(ctx, state, action_text)
    regex = future_regex(ctx.role("predict").line_chars)

    async def one(sample: int) -> tuple[Answer, FutureText]:
        answer = await ctx.ask(
            "predict", "predict", prompt, adapter=adapter, request_key=request_key, sample=sample, regex=regex
        )
        return answer, read_future(answer.text)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


@dataclass(frozen=True)
class BackupInputs:
    """What the backup reads: (s, a, r, s'), and a' and d' unless the transition is terminal (or bootstrapping off)."""

    state: State
    action_text: str
    next_observation: str
    reward: float
    terminal: bool
    next_action_text: str | None = None
    next_future: str | None = None

    @property
    def privileged(self) -> tuple[str, ...]:
        """The texts that the predict prompt will not show."""
        return tuple(t for t in (self.next_observation, self.next_action_text, self.next_future) if t)

    @property
    def visible(self) -> tuple[str, ...]:
        """The texts that it will."""
        past = [text for turn in self.state.turns for text in (turn.observation, turn.text)]
        return (*past, self.state.observation, self.action_text)


def backup_prompt(
    ctx: StageContext, backup: BackupInputs, *, label: tuple[str, ...] = (), trains: bool = False
) -> Prompt:
    """The backup prompt."""
    return ctx.prompt(
        "bootstrap",
        "bootstrap",
        label=label,
        trains=trains,
        state=backup.state,
        action_text=backup.action_text,
        next_observation=backup.next_observation,
        reward=backup.reward,
        terminal=backup.terminal,
        next_action=backup.next_action_text,
        next_future=backup.next_future,
    )


async def write_backup(
    ctx: StageContext, backup: BackupInputs, *, adapter: str, request_key: str
) -> tuple[Answer, FutureText]:
    """d ~ B(.|s,a,r,s',a',d'): a thought, then the description."""
    prompt = backup_prompt(ctx, backup)
    regex = future_regex(ctx.role("bootstrap").line_chars)
    answer = await ctx.ask(
        "bootstrap", "bootstrap", prompt, adapter=adapter, request_key=request_key, regex=regex
    )
    return answer, read_future(answer.text)


def evaluate_prompt(
    ctx: StageContext,
    state: State,
    action_text: str,
    futures: Sequence[str],
    *,
    label: tuple[str, ...] = (),
    trains: bool = False,
) -> Prompt:
    """The evaluate prompt."""
    shown = {"state": state, "action_text": action_text, "futures": futures}
    return ctx.prompt("evaluate", "evaluate", label=label, trains=trains, **shown)


async def evaluate(
    ctx: StageContext, state: State, action_text: str, futures: list[str], *, adapter: str, request_key: str
) -> tuple[Answer, Verdict]:
    """q ~ E(.|s,a,d1..dk)."""
    prompt = evaluate_prompt(ctx, state, action_text, futures)
    regex = verdict_regex(ctx.role("evaluate").line_chars)
    answer = await ctx.ask(
        "evaluate", "evaluate", prompt, adapter=adapter, request_key=request_key, regex=regex
    )
    return answer, read_verdict(answer.text)


def refine_prompt(
    ctx: StageContext,
    state: State,
    attempts: Sequence[Attempt],
    *,
    label: tuple[str, ...] = (),
    trains: bool = False,
) -> Prompt:
    """The refine prompt."""
    return ctx.prompt("refine", "refine", label=label, trains=trains, state=state, attempts=attempts)


async def refine(
    ctx: StageContext, state: State, attempts: list[Attempt], *, adapter: str, request_key: str
) -> tuple[Answer, Action]:
    """a_r ~ pi_r(.|s, earlier (action, critique) pairs)."""
    form = ctx.environment.action_format
    prompt = refine_prompt(ctx, state, attempts)
    regex = action_regex(form, ctx.role("refine").line_chars)
    answer = await ctx.ask("refine", "refine", prompt, adapter=adapter, request_key=request_key, regex=regex)
    return answer, read_action(answer.text, form)


async def choose(
    ctx: StageContext, state: State, attempts: list[Attempt], *, adapter: str, request_key: str
) -> tuple[Answer, int | None]:
    """The final choice among tried actions: an index into `attempts`, or None when the answer names none
    of them."""
    prompt = ctx.prompt("refine", "choose", state=state, attempts=attempts)
    numbers = "|".join(str(n + 1) for n in range(len(attempts)))
    answer = await ctx.ask(
        "refine", "choose", prompt, adapter=adapter, request_key=request_key, regex=f"(?:{numbers})"
    )
    named = answer.text.strip().rstrip(".")
    return answer, int(named) - 1 if named.isdecimal() and 0 < int(named) <= len(attempts) else None


async def rewrite(
    ctx: StageContext, template: str, *, adapter: str, request_key: str, attempt: int, **variables: object
) -> Rewrite:
    """One rewrite of a thought by the corrector; an empty text when the request failed."""
    prompt = ctx.prompt("correct", template, **variables)
    answer = await ctx.ask(
        "correct", template, prompt, adapter=adapter, request_key=request_key, sample=attempt
    )
    return Rewrite(read_rewrite(answer.text), answer.generation, answer.reasoning)
