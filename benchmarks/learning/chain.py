"""Information travels one step back per iteration: a chain of 8 states with the reward at the end.

The chain is a path on a frozen lake on which only the action along the path is legal. Labels are drawn once an
iteration from frozen parameters (tau 1: the target is what the last iteration left) and fitted, so the outcome
must appear in the description at distance i exactly in iteration i, counted from 1.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning.lake_run import CONFIG
from benchmarks.learning.measured_run import measuring
from schemas.config import Config
from schemas.load import load_config
from schemas.rows import Split
from storage.history import State
from storage.store import Store
from tasks.environments.base import Task
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake.maps import make_lake
from tasks.environments.frozen_lake.text import read_description, read_observation
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.iterations import run_iteration
from tasks.roles.successor import predict_futures
from tasks.text.formats import write_action

MAP = ("SFFF", "HHHF", "GFFF", "FFFF")
PATH = {
    (0, 0): "right", (0, 1): "right", (0, 2): "right", (0, 3): "down",
    (1, 3): "down", (2, 3): "left", (2, 2): "left", (2, 1): "left",
}  # fmt: skip
SAMPLES = 8
LAST_STEPS = 5


class Chain(FrozenLake):
    """Eight states in a row; the one legal action of each leads to the next, the last one to the goal."""

    name = "chain"

    def __init__(self) -> None:
        super().__init__()
        self.lake = make_lake(0, MAP, False, 6)

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"chain/{split}", split, 0)]

    async def reset(self, task: Task) -> str:
        self._lake, self._state = self.lake, 0
        return self._lake.observations[0]

    def legal_actions(self, observation: str) -> Sequence[str]:
        return [PATH[read_observation(observation).agent]]


def chain_config(base: Config, model: Path, iteration: int) -> Config:
    """The critic alone, on the chain. Iteration 0 trains longer: the model has to learn the format first."""
    config: dict[str, Any] = base.model_dump()
    config |= {
        "run": "chain",
        "environment": {**config["environment"], "name": "benchmarks.learning.chain:Chain", "options": {}},
    }
    config["model"]["name"] = str(model)
    config["rollout"] |= {"episodes": 8, "first_episodes": None, "uniform_until": 1000}
    config["replay"] |= {"transitions": 3840}
    config["critic"] |= {
        "epochs": 3 if iteration == 0 else 2, "batch_rows": 64, "micro_batch_rows": 64, "mix": 0.0,
        "decay_from": None, "decay_until": None,
    }  # fmt: skip
    config["target"] |= {"tau": 1.0}
    config["roles"]["predict"] |= {"top_p": 0.9}  # what is not yet fitted to the last percent makes no labels
    config["improvement"] |= {"from_iteration": 1000}
    config["evaluation"] |= {"every": 1000}
    return Config.model_validate(config)


@dataclass(frozen=True)
class Arrivals:
    """What a chain has shown.

    Attributes:
        iterations: for each distance 1, 2, ... the first iteration (from 1) after which most sampled descriptions at
            that distance tell the outcome, provided that they tell it from then on; 0 where they never do.
        losses: mean loss (nats a token) of the last steps of each iteration: how well its labels were fitted.
    """

    iterations: list[int]
    losses: list[float]


async def chain_arrivals(store: Store, base: Config, model: Path, iterations: int = len(PATH)) -> Arrivals:
    """Run as many iterations as the chain is long, or fewer."""
    lake = Chain().lake
    distance = {cell: len(PATH) - n for n, cell in enumerate(PATH)}
    told: list[dict[int, bool]] = []
    losses: list[float] = []
    for iteration in range(iterations):
        config = chain_config(base, model, iteration)
        await run_iteration(store, config, iteration)
        async with measuring(store, config, iteration) as ctx:
            now = {}
            for cell, action in PATH.items():
                state, text = State((), lake.observations[4 * cell[0] + cell[1]]), write_action("", action)
                drawn = await predict_futures(
                    ctx, state, text, SAMPLES, adapter="critic", request_key=str(cell)
                )
                read = [read_description(future.description) for _, future in drawn]
                now[distance[cell]] = 2 * sum(f is not None and f.outcome == "goal" for f in read) > SAMPLES
            told.append(now)
        trained = store.committed(config.run, "critic-sft", iteration)
        assert trained is not None
        losses.append(
            trained.scan("training_steps").sort("step").collect()["critic_loss"].tail(LAST_STEPS).mean()
        )
    first = {
        d: next((i + 1 for i in range(len(told)) if all(t[d] for t in told[i:])), 0)
        for d in distance.values()
    }
    return Arrivals([first[d] for d in sorted(first)], losses)


def main(data: Path, out: Path) -> None:
    """Run the chain below `data` and write its arrivals."""
    model = make_word_model(data / "model-chain", 0)
    shown = asyncio.run(chain_arrivals(Store(data), load_config(CONFIG), model))
    out.write_text(json.dumps(asdict(shown)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
