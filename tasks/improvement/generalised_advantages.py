"""Generalised advantage estimation over the turns of an episode (GAE, Schulman et al., arXiv 1506.02438)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import pstdev

import polars as pl

from schemas.rows import Advantage, Episode, Value
from tasks.improvement.group_advantages import STD_FLOOR
from tasks.runtime.context import StageContext


@dataclass(frozen=True)
class Turn:
    """A turn of an episode, as the estimator reads it."""

    reward: float
    value: float  # V(s)
    next_value: float | None = None  # V(s') where the episode was cut after it


def generalised_advantages(turns: Sequence[Turn], discount: float, trace: float) -> list[float]:
    """A_t = delta_t + discount * trace * A_{t+1}, with delta_t = r_t + discount * V(s_{t+1}) - V(s_t).

    Args:
        turns: of an episode, in order. After its own end V is 0; where it was cut, `next_value` follows.
        discount: gamma.
        trace: lambda.
    """
    found: list[float] = []
    following, advantage = turns[-1].next_value or 0.0, 0.0
    for turn in reversed(turns):
        delta = turn.reward + discount * following - turn.value
        advantage = delta + discount * trace * advantage
        following = turn.value
        found.append(advantage)
    return found[::-1]


def generalised(ctx: StageContext) -> list[Advantage]:
    """GAE of every episode, divided by the standard deviation over the iteration (`policy_gradient.divide_by_std`).

    The return estimate is the advantage plus the value, which is what the value head learns. A failed episode, and one
    with a state that has no value, have rows with a status.
    """
    section = ctx.config.policy_gradient
    episodes: dict[str, Episode] = {row.episode_id: row for row in ctx.inputs.rows("episodes")}
    values: dict[str, Value] = {row.transition_id: row for row in ctx.inputs.rows("values")}
    steps = (
        ctx.inputs.scan("transitions")
        .sort("episode_id", "step")
        .group_by("episode_id", maintain_order=True)
        .agg(pl.col("transition_id", "reward"))
        .collect()
    )
    rows = [
        row
        for episode_id, ids, rewards in steps.iter_rows()
        for row in _rated(ctx, episodes[episode_id], ids, rewards, values)
    ]
    known = [row.advantage for row in rows if row.advantage is not None]
    scale = pstdev(known) + STD_FLOOR if section.divide_by_std and known else 1.0
    return [
        row
        if row.advantage is None
        else row.model_copy(update={"advantage": row.advantage / scale, "scale": scale})
        for row in rows
    ]


def _rated(
    ctx: StageContext,
    episode: Episode,
    ids: Sequence[str],
    rewards: Sequence[float],
    values: dict[str, Value],
) -> Iterator[Advantage]:
    """The rows of an episode, before they are scaled."""
    section = ctx.config.policy_gradient
    status, error = "ok", None
    if episode.status != "ok":
        status, error = "episode_failed", f"{episode.status}: {episode.error}"
    elif lacking := next((values[name] for name in ids if values[name].status != "ok"), None):
        status, error = "no_value", f"{lacking.transition_id}: {lacking.error}"
    advantages: Sequence[float | None] = [None] * len(ids)
    if status == "ok":
        turns = [
            Turn(reward, values[name].value or 0.0, values[name].next_value)
            for name, reward in zip(ids, rewards, strict=True)
        ]
        advantages = generalised_advantages(turns, section.discount, section.trace)
    for name, advantage in zip(ids, advantages, strict=True):
        value = values[name].value
        yield Advantage(
            run=ctx.config.run,
            iteration=ctx.iteration,
            status=status,
            error=error,
            transition_id=name,
            episode_id=episode.episode_id,
            kind="gae",
            return_estimate=None if advantage is None or value is None else advantage + value,
            baseline=value,
            advantage=advantage,
        )
