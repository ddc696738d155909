"""Maps of the lake, their dynamics, and their exact action values.

Maps and dynamics are gymnasium's (FrozenLake-v1). They are read once per map, so a step costs one table look-up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice

import numpy as np

from tasks.environments.exact import Array, Dynamics
from tasks.environments.frozen_lake.text import ACTIONS, Cell, observe, read_observation

Map = tuple[str, ...]
SEEDS = 1_000_000  # map seeds of one environment seed: seed * SEEDS, seed * SEEDS + 1, ...
PATIENCE = 100  # candidates tried per map


@dataclass(frozen=True)
class Effect:
    """One possible outcome of an action in a cell."""

    probability: float
    state: int
    reward: float
    done: bool


@dataclass(frozen=True)
class Lake:
    """One map and its dynamics. A state is a cell's number, row by row.

    Attributes:
        seed: gymnasium's seed of the map.
        rows: the map; S start, F frozen, H hole, G goal.
        effects: [state][action] -> outcomes.
        observations: [state] -> observation.
        legal: [state] -> actions that do not run into the wall.
        reachable: states that can be reached from S, without holes and goal; S first.
    """

    seed: int
    rows: Map
    effects: tuple[tuple[tuple[Effect, ...], ...], ...]
    observations: tuple[str, ...]
    legal: tuple[tuple[str, ...], ...]
    reachable: tuple[int, ...]

    def cell(self, state: int) -> Cell:
        """Row and column of a state."""
        return divmod(state, len(self.rows[0]))

    def dynamics(self) -> Dynamics:
        """The dynamics as arrays."""
        states = len(self.effects)
        onward, reward = np.zeros((states, len(ACTIONS), states)), np.zeros((states, len(ACTIONS)))
        for state, action in np.ndindex(states, len(ACTIONS)):
            for effect in self.effects[state][action]:
                reward[state, action] += effect.probability * effect.reward
                if not effect.done:
                    onward[state, action, effect.state] += effect.probability
        return Dynamics(onward, reward)

    def q_star(self, gamma: float) -> Array:
        """Exact optimal action values, [states, actions]; 0 in holes and in the goal."""
        return self.dynamics().q_star(gamma)


@lru_cache(maxsize=4096)
def make_lake(seed: int, rows: Map, slippery: bool, max_holes: int) -> Lake:
    """The lake of a map, with dynamics from gymnasium.

    Args:
        seed: gymnasium's seed of the map.
        rows: the map.
        slippery: an action moves to either side of its direction with probability 1/3 each.
        max_holes: number of holes that an observation lists.
    """
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    table = FrozenLakeEnv(desc=list(rows), is_slippery=slippery).P
    states = range(len(table))
    effects = tuple(
        tuple(
            tuple(
                Effect(float(p), int(after), float(r), bool(done)) for p, after, r, done in table[s][action]
            )
            for action in range(len(ACTIONS))
        )
        for s in states
    )
    reachable = [0]
    for state in reachable:  # grows during the loop
        after = [e.state for outcomes in effects[state] for e in outcomes if not e.done]
        reachable += [s for s in dict.fromkeys(after) if s not in reachable]
    observations = tuple(observe(rows, divmod(s, len(rows[0])), max_holes) for s in states)
    legal = tuple(read_observation(text).legal for text in observations)
    return Lake(seed, rows, effects, observations, legal, tuple(reachable))


@lru_cache(maxsize=32)
def generate_maps(number: int, size: int, density: float, max_holes: int, seed: int) -> Mapping[int, Map]:
    """The first `number` distinct solvable maps with at most `max_holes` holes, by gymnasium's seed.

    Args:
        number: number of maps.
        size: cells per side.
        density: probability that a cell is frozen.
        max_holes: maps with more holes are skipped.
        seed: gymnasium's seeds are tried from seed * SEEDS on.

    Raises:
        ValueError: there are too few such maps.
    """
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    if size < 2 or not 0 < density <= 1:
        raise ValueError(f"size {size}, density {density}: size is at least 2 and density within (0, 1]")
    found: dict[Map, int] = {}
    for candidate in islice(count(seed * SEEDS), number * PATIENCE):
        rows = tuple(generate_random_map(size=size, p=density, seed=candidate))
        if "".join(rows).count("H") <= max_holes:
            found.setdefault(rows, candidate)
        if len(found) == number:
            return {seed_: map_ for map_, seed_ in found.items()}
    raise ValueError(
        f"only {len(found)} of {number} distinct maps of size {size} with at most {max_holes} holes were found; "
        "ask for fewer maps (those of all splits together are three times `maps`), or raise size or max_holes"
    )
