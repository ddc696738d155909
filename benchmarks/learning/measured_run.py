"""What runs on worlds with exact action values share: asking a run's parameters, and the figures of an iteration."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from schemas.config import Config
from storage.history import State
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.engines.protocol import Adapter
from tasks.pipeline.decision import resolve_inputs
from tasks.roles.successor import predict_futures
from tasks.runtime.context import StageContext, stage_context
from tasks.runtime.stage import Inputs
from tasks.text.formats import FutureText, write_action

Array = npt.NDArray[np.float64]
RANKED_FUTURES = 8  # of an action, whatever k a run trains with
LAST = 3  # iterations that a run's final figures are the mean of


@dataclass(frozen=True)
class Map:
    """One map, as it is asked about.

    Attributes:
        name: distinguishes its requests from those of other maps.
        observations: state -> observation, of every state that counts.
        q_star: exact action values, [states, actions]; a state is a row's number.
    """

    name: str
    observations: Mapping[int, str]
    q_star: Array

    @property
    def states(self) -> list[int]:
        """The rows that count."""
        return list(self.observations)


@dataclass
class Figures:
    """Figures after one iteration; the critic's are None where it was not measured."""

    iteration: int
    environment_steps: int
    sampled_success: float
    optimal_states: float
    rank: float | None = None
    malformed: float | None = None


F = TypeVar("F", bound=Figures)


@asynccontextmanager
async def measuring(store: Store, config: Config, iteration: int | None) -> AsyncIterator[StageContext]:
    """What a stage has around it, to ask questions of the parameters that an iteration left; None: of the base
    model."""
    untrained: dict[str, Adapter | None] = dict.fromkeys(("policy", "critic", "refiner"))
    inputs = Inputs(adapters=untrained if iteration is None else _parameters(store, config, iteration))
    ctx = stage_context(
        config, algorithm_of(config), "measure", inputs, store.cache_dir, iteration=iteration or 0
    )
    try:
        yield ctx
    finally:
        await ctx.roles.close()


def _parameters(store: Store, config: Config, iteration: int) -> dict[str, Adapter | None]:
    policy = resolve_inputs(store, config, "evaluation", iteration).adapters["policy"]
    critic = policy
    if algorithm_of(config).has_successor:
        critic = resolve_inputs(store, config, "critique", iteration).adapters["critic"]
    return {"policy": policy, "critic": critic, "refiner": critic}


async def policy_table(ctx: StageContext, place: Map, actions: Sequence[str]) -> Array:
    """Probability of each action in each state, [states, actions]; what is missing from 1 is no action at all."""

    async def probability(state: int, action: str) -> float:
        messages = ctx.prompts.policy_messages(State((), place.observations[state]))
        scored = await ctx.roles.scores(
            "policy",
            messages,
            (write_action("", action),),
            adapter="policy",
            request_key=f"{place.name}/{state}/{action}",
        )
        assert scored is not None
        return float(np.exp(sum(scored.segments[0])))

    table = np.zeros_like(place.q_star)
    rows = await asyncio.gather(
        *(asyncio.gather(*(probability(s, a) for a in actions)) for s in place.states)
    )
    table[place.states] = rows
    return table


@dataclass(frozen=True)
class Asked:
    """The futures of an action, as the critic foresees them."""

    place: Map
    state: int
    action: str
    futures: list[FutureText]


async def foresee(ctx: StageContext, maps: Sequence[Map], actions: Sequence[str]) -> list[Asked]:
    """RANKED_FUTURES futures of every action in every state of some maps, in this order."""

    async def one(place: Map, state: int, action: str) -> Asked:
        drawn = await predict_futures(
            ctx,
            State((), place.observations[state]),
            write_action("", action),
            RANKED_FUTURES,
            adapter="critic",
            request_key=f"{place.name}/{state}/{action}",
        )
        return Asked(place, state, action, [future for _, future in drawn])

    asked = [(place, state, action) for place in maps for state in place.states for action in actions]
    return list(await asyncio.gather(*(one(*question) for question in asked)))


def stacked(maps: Sequence[Map], tables: Sequence[Array] | None = None) -> Array:
    """The rows that count, of every map: of its exact values, or of a table for each."""
    chosen = [place.q_star for place in maps] if tables is None else tables
    return np.concatenate([table[place.states] for place, table in zip(maps, chosen, strict=True)])


def final(measured: Sequence[Figures], figure: str) -> float:
    """Mean of a figure over the last iterations."""
    values = [getattr(m, figure) for m in measured[-LAST:]]
    return float(sum(values) / len(values))


def finals(measured: Sequence[Figures], figures: Iterable[str]) -> dict[str, str | None]:
    """Those means as a table shows them; None where a figure was not measured."""
    return {
        name: None if getattr(measured[-1], name) is None else f"{final(measured, name):.3f}"
        for name in figures
    }


def at_steps(measured: Sequence[F], steps: int) -> list[F]:
    """A run up to (and with) the iteration in which it has used at least so many environment steps."""
    reached = next((n for n, m in enumerate(measured) if m.environment_steps >= steps), len(measured) - 1)
    return list(measured[: reached + 1])
