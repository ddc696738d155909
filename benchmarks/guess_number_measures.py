"""Measures of GuessTheNumber: what a guess is worth, what a critic foresees, and whether two policies differ."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import polars as pl

from storage.history import State, rebuild_states
from storage.store import Committed
from tasks.context import StageContext
from tasks.environments.base import ActionFormat
from tasks.environments.guess_number import HINT, Span
from tasks.formats import read_action
from tasks.leaks import SOURCE_OF_TARGET, find_leaks
from tasks.roles import predict_futures

NUMBER = re.compile(r"\[(\d+)\]")
JUDGED = 128


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of `won` and `lost` discordant pairs under fair coins (McNemar 1947)."""
    pairs, fewer = won + lost, min(won, lost)
    tail: float = sum(comb(pairs, n) for n in range(fewer + 1)) / 2**pairs
    return min(1.0, 2 * tail)


def guessed(text: str, form: ActionFormat) -> int:
    """The number that a policy's text guesses, read as the game does: the first one in brackets of the action, whatever
    stands around it; 0 where there is none."""
    found = NUMBER.search(read_action(text, form).action)
    return int(found[1]) if found else 0


def answers(state: State) -> list[str]:
    """What was seen after each past guess; what was seen first, where there is none."""
    return [*(turn.observation for turn in state.turns[1:]), state.observation]


def left_by_hints(state: State, form: ActionFormat) -> Span:
    """The numbers that are still possible in a state; one that was tried never is."""
    span = Span()
    for turn, seen in zip(state.turns, answers(state), strict=False):
        if hint := HINT.search(seen):
            span = span.after(guessed(turn.text, form), hint[1])
    return span


def likelier(span: Span, guess: int) -> str:
    """The likelier hint on a guess where these numbers are left, each as likely."""
    chances = {"higher": sum(n > guess for n in span), "lower": sum(n < guess for n in span)}
    return max(chances, key=lambda hint: chances[hint])


def possible_share(
    states: Mapping[str, State], actions: Sequence[tuple[str, str]], form: ActionFormat
) -> float:
    """Of actions (transition_id, whole text), the share whose guess the hints before it left possible."""
    found = [guessed(text, form) in left_by_hints(states[identity], form) for identity, text in actions]
    return sum(found) / len(found)


@dataclass(frozen=True)
class Fidelity:
    """What a critic foresees of steps that were played, one future each: shares of futures.

    Attributes:
        hints: that name the hint which then followed.
        best_hints: in which naming the likelier hint would have been right.
        malformed: without their format.
        asserted: whose thought asserts what then followed, or names a source it can't have read (docs/leaks.md).
    """

    hints: float
    best_hints: float
    malformed: float
    asserted: float


async def critic_fidelity(ctx: StageContext, played: Committed) -> Fidelity:
    """Ask about JUDGED steps that a hint followed on, drawn at random from an evaluation."""
    steps = played.scan("transitions").filter(pl.col("next_observation").str.contains(HINT.pattern)).collect()
    drawn = steps.sample(min(JUDGED, steps.height), seed=0)
    states = rebuild_states(played.scan("transitions"), drawn["transition_id"])
    rows = drawn.select("transition_id", "raw_action", "next_observation").rows()
    form = ctx.environment.action_format

    async def one(row: tuple[str, str, str]) -> tuple[bool, bool, bool, bool]:
        identity, text, seen = row
        state = states[identity]
        [(_, future)] = await predict_futures(ctx, state, text, 1, use="critic", item=identity)
        best = likelier(left_by_hints(state, form), guessed(text, form))
        truth = HINT.search(seen)
        assert truth is not None
        leak = find_leaks(
            future.thought, privileged=(seen,), visible=(*answers(state), text), source=SOURCE_OF_TARGET
        )
        named = f"hint is {truth[1]}" in future.description
        return named, best == truth[1], future.malformed, leak.share > 0

    results = await asyncio.gather(*(one(row) for row in rows))
    return Fidelity(*(sum(column) / len(results) for column in zip(*results, strict=True)))
