"""Demonstrations of optimal play, in an environment that knows it: the best action, and what an action leads to."""

import random
from collections.abc import Iterator
from typing import Any

import polars as pl

from tasks.datasets.demonstrations import demonstrations_frame
from tasks.environments.base import KnowsBestActions
from tasks.seeding import derive_seed
from tasks.text.formats import write_action

FUTURES = 2  # demonstrated futures for each demonstrated action: there are several actions in a state


def optimal_demonstrations(environment: KnowsBestActions, rows: int, seed: int) -> pl.DataFrame:
    """`rows` answers of the policy and twice as many of the successor, in random states of the training split.

    Args:
        environment: knows its best actions.
        rows: answers of the policy. A state returns after all the others have been drawn.
        seed: of the draw.
    """
    states = list(environment.solved_states("train"))
    stream = random.Random(derive_seed(seed, "optimal-demonstrations"))

    def shuffled() -> Iterator[Any]:
        while True:
            yield from stream.sample(states, len(states))

    told: list[dict[str, Any]] = []
    for _, state in zip(range(rows), shuffled(), strict=False):
        told.append({"role": "policy", "observation": state.observation, "answer": stream.choice(state.best)})
    for _, state in zip(range(FUTURES * rows), shuffled(), strict=False):
        action = stream.choice(list(state.futures))
        told.append(
            {
                "role": "predict",
                "observation": state.observation,
                "action_text": write_action("", action),
                "answer": state.futures[action],
            }
        )
    return demonstrations_frame(told)
