"""What a critic of GuessTheNumber foresees of steps that were played."""

import asyncio
from dataclasses import dataclass

import polars as pl

from storage.history import rebuild_states
from storage.store import Committed
from tasks.environments.guess_number import HINT, guessed, left_by_hints, likelier
from tasks.roles.successor import predict_futures
from tasks.runtime.context import StageContext

JUDGED = 128


@dataclass(frozen=True)
class Fidelity:
    """Shares of the futures that a critic predicted, one for each step.

    Attributes:
        hints: that name the hint which then followed.
        best_hints: in which naming the likelier hint would have been right.
        malformed: without their format.
    """

    hints: float
    best_hints: float
    malformed: float


async def critic_fidelity(ctx: StageContext, played: Committed) -> Fidelity:
    """Ask about JUDGED steps that a hint followed on, drawn at random from an evaluation."""
    steps = played.scan("transitions").filter(pl.col("next_observation").str.contains(HINT.pattern)).collect()
    drawn = steps.sample(min(JUDGED, steps.height), seed=0)
    states = rebuild_states(played.scan("transitions"), drawn["transition_id"])
    rows = drawn.select("transition_id", "raw_action", "next_observation").rows()
    form = ctx.environment.action_format

    async def one(row: tuple[str, str, str]) -> tuple[bool, bool, bool]:
        identity, text, seen = row
        state = states[identity]
        [(_, future)] = await predict_futures(ctx, state, text, 1, adapter="critic", request_key=identity)
        best = likelier(left_by_hints(state, form), guessed(text, form))
        truth = HINT.search(seen)
        assert truth is not None
        return f"hint is {truth[1]}" in future.description, best == truth[1], future.malformed

    results = await asyncio.gather(*(one(row) for row in rows))
    return Fidelity(*(sum(column) / len(results) for column in zip(*results, strict=True)))
