"""GRPO, PPO and SAC reach the optimum of a FrozenLake of nine cells, from a model that can say nothing yet."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import compared
from benchmarks.learning.lake_run import lake_map
from benchmarks.learning.measured_run import measuring, policy_table
from schemas.config import Config
from schemas.load import merge
from storage.store import Store
from tasks.environments.frozen_lake import FrozenLake, measures
from tasks.environments.frozen_lake.text import ACTIONS
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.checks import check_config
from tests.support.iterations import Iterate
from tests.support.processor import computes_long

SMALL: dict[str, Any] = {
    "environment": {"options": {"size": 3, "maps": 2, "max_holes": 2}},
    "rollout": {"episodes": 64, "first_episodes": 128, "max_steps": 8},
    "replay": {"transitions": 512},
    "critic": {"epochs": 4, "batch_rows": 64, "micro_batch_rows": 64, "final_rate": 1.0},
    "policy": {
        "epochs": 8, "learning_rate": 4e-3, "batch_rows": 32, "micro_batch_rows": 32,
        "decay_from": 2, "decay_until": 4, "final_rate": 0.05,
    },
    "improvement": {"states": 256},
    "evaluation": {"episodes": 2, "every": 100},
}  # fmt: skip
GROUPS = {"rollout": {"episodes": 8, "first_episodes": 16, "repeats": 8}}
# A large step can make all sampled texts unlikely. Their ratios are then near 0, and no gradient leads back. So PPO's
# steps are small once the policy plays. At a final_rate of 0.1 the policy of some seeds still breaks down.
SMALL_STEPS = {
    "policy": {"epochs": 16, "warmup_steps": 80, "decay_from": 1, "decay_until": 2, "final_rate": 0.03}
}
# With fewer epochs the policy's rows, four a state, make the shared parameters forget what Q learns of the action.
OFTEN = {"critic": {"epochs": 16}, "policy": {"epochs": 4}}


async def success(store: Store, config: Config, iteration: int) -> list[float]:
    """Of the policy on each training map from its start cell, without sampling noise; optimal play has 1."""
    world = FrozenLake(**config.environment.options)
    lakes = world.lakes("train")
    async with measuring(store, config, iteration) as ctx:
        tables = [await policy_table(ctx, lake_map(lake, world.gamma), ACTIONS) for lake in lakes]
    return [measures.success_probability(lake, table) for lake, table in zip(lakes, tables, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "own", "iterations"),
    [
        ("grpo", GROUPS, 6),
        ("ppo", SMALL_STEPS, 6),
        pytest.param("sac", OFTEN, 8, marks=[pytest.mark.long, computes_long]),
    ],
)
def test_a_small_frozen_lake_is_solved(
    algorithm: str, own: dict[str, Any], iterations: int, store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    model = make_word_model(tmp_path / "model", seed=0)
    config = compared.configure("frozen_lake", algorithm, 0, {}, model, merge(SMALL, own))
    check_config(config, store.root)
    reached = []
    for number in range(iterations):
        iterate(config)
        reached.append(asyncio.run(success(store, config, number)))
    assert max(reached[0]) < 0.3, "the model can't act at first"
    assert min(reached[-1]) > 0.98, reached
