"""What `benchmarks.learning.comparison` runs: worlds, the settings of each algorithm, one run of one of them.

All algorithms have the world's configuration: model, exploration, evaluation, episodes of an iteration. They differ in
what an algorithm is (`OWN`) and in a setting, the best of a grid (`GRIDS`) on a seed that is not reported.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import lake_run, walk_run
from benchmarks.learning.environment_steps import collected_steps, simulated_steps
from benchmarks.learning.measured_run import Figures
from benchmarks.learning.result_files import Record, configuration_digest, read_result, write_result
from benchmarks.learning.resumed_run import go_on
from benchmarks.learning.run_costs import run_costs
from benchmarks.learning.walk_run import ALONE, AT_ONCE, PROOFS
from schemas.config import Config
from schemas.load import load_config, merge
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.environments.exact import Array, optimal_actions
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake import measures as lake_measures
from tasks.environments.frozen_lake.word_model import make_word_model as make_lake_model
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk import measures as walk_measures
from tasks.environments.line_walk.word_model import make_word_model as make_walk_model
from tasks.pipeline.checks import check_config
from tasks.runtime.stage import StageFailed
from tasks.training.records import TrainingDiverged

SEEDS = (0, 1, 2)
GRID_SEED = 7
"""Settings are chosen on it, and it is not reported."""


@dataclass(frozen=True)
class World:
    """One world with exact values.

    Attributes:
        title: for tables.
        config: what all algorithms share.
        steps: environment steps that they are compared at, simulated ones counted.
        make_model: (folder, seed) -> the untrained checkpoint.
        measure: (store, config, iteration) -> success of the policy on the held-out tasks, without sampling noise.
        optimum: configuration -> the same of optimal play.
    """

    title: str
    config: Path
    steps: int
    make_model: Callable[[Path, int], Path]
    measure: Callable[[Store, Config, int], Awaitable[Figures]]
    optimum: Callable[[Config], float]


def _optimal_play(exact: Array) -> Array:
    """Probabilities of optimal play, [states, actions]."""
    best = optimal_actions(exact).astype(np.float64)
    play: Array = best / best.sum(axis=1, keepdims=True)
    return play


def _lake_optimum(config: Config) -> float:
    world = FrozenLake(**config.environment.options)
    tables = [(lake, _optimal_play(lake.q_star(world.gamma))) for lake in world.lakes("eval")]
    return float(np.mean([lake_measures.success_probability(*pair) for pair in tables]))


def _walk_optimum(config: Config) -> float:
    world = LineWalk(**config.environment.options)
    lines = world.lines("eval")
    tables = [_optimal_play(line.q_star(world.gamma)) for line in lines]
    return walk_measures.success_probability(lines, tables, config.rollout.max_steps)


WORLDS: dict[str, World] = {
    "frozen_lake": World(
        "FrozenLake", PROOFS / "comparison_frozen_lake.yaml", 10_000, make_lake_model,
        partial(lake_run.measure, ranked_maps=0), _lake_optimum,
    ),
    "line_walk": World(
        "line walk", PROOFS / "comparison_line_walk.yaml", 8_000, make_walk_model,
        partial(walk_run.measure, critic=False), _walk_optimum,
    ),
}  # fmt: skip


GAMMA = 0.8
"""Of both worlds: their evaluator discounts by it, and so do the algorithms with a scalar critic."""

OWN: dict[str, dict[str, Any]] = {
    "refiner_alone": {"improvement": ALONE},
    "nlrl": {"improvement": {"rounds": 1}},
    # A group plays one task, so an iteration has as many episodes as those of the others.
    "grpo": {"rollout": {"episodes": 16, "first_episodes": 32, "repeats": 8}},
    # An episode cut at its last step goes on with the value of its state. Undiscounted, wandering would cost nothing.
    "ppo": {"policy_gradient": {"discount": GAMMA}},
    "sac": {"soft_q": {"discount": GAMMA}},
}
"""Algorithm -> what it is, beside its name. One without a critic improves its policy from the first iteration on."""


def _grid(rates: Sequence[float], epochs: Sequence[int], **policy: Any) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "critic": {"learning_rate": rate, "epochs": passes},
            "policy": {"learning_rate": rate, "epochs": passes, **policy},
        }
        for rate, passes in product(rates, epochs)
    )


# The first setting runs where no grid has been run.
_SMALL = {"batch_rows": 32, "micro_batch_rows": 32}
_CRITIC = _grid((2e-3,), (4, 8)) + _grid((1e-3,), (4, 8), **_SMALL)
# Every Monte-Carlo rollout costs environment steps, so few states have one.
_SIMULATED: tuple[dict[str, Any], ...] = tuple(
    {"improvement": {"states": states, "futures": 1}, "policy": {"epochs": passes}}
    for states, passes in product((8, 16), (16, 32))
)
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "nlac": _CRITIC,
    "nlql": _CRITIC,
    "refiner_alone": _CRITIC,
    "sac": _CRITIC,
    "rft": _grid((1e-3,), (4, 8, 16, 32), **_SMALL),
    "grpo": _grid((1e-3, 5e-4), (16, 32), **_SMALL),
    "ppo": _grid((1e-3, 5e-4), (4, 8), **_SMALL),  # its policy breaks down at 2e-3
    "self_distillation": _SIMULATED,
    "nlrl": _SIMULATED,
}
"""Algorithm that trains -> its settings, the same number for each."""


def grid_of(algorithm: str) -> tuple[dict[str, Any], ...]:
    """The settings of an algorithm; one that trains nothing has a single one, in which nothing differs."""
    return GRIDS[algorithm] if ALGORITHMS[algorithm].trains else ({},)


def configure(
    world: str,
    algorithm: str,
    seed: int,
    setting: Mapping[str, Any],
    model: Path,
    changes: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a run, with further changes; each seed has a model and held-out tasks of its own."""
    own = {
        "run": f"{algorithm}-{seed}", "algorithm": algorithm, "seed": seed, "model": {"name": str(model)},
        "environment": {"options": {"seed": seed}},
    }  # fmt: skip
    content = load_config(WORLDS[world].config).model_dump()
    at_once = {} if ALGORITHMS[algorithm].has_critic else {"improvement": AT_ONCE}
    for part in (own, at_once, OWN.get(algorithm, {}), setting, changes or {}):
        content = merge(content, part)
    return Config.model_validate(content)


def digest_of(world: str, algorithm: str, setting: Mapping[str, Any]) -> str:
    """The digest of the configuration of all seeds."""
    return configuration_digest(configure(world, algorithm, 0, setting, Path("/")))


@dataclass
class ComparedFigures(Figures):
    """Figures after one iteration. Those of costs are of all iterations so far; simulated steps are among the
    environment steps."""

    simulated_steps: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Compared(Record[ComparedFigures]):
    """One run of one algorithm.

    Attributes:
        world: name of the world.
        algorithm: its name.
        seed: of model, world and run.
        setting: what differs from what all algorithms share and from what the algorithm is.
        optimum: success of optimal play on the same tasks.
        number: of the setting in the grid; None in a reported run.
        diverged: why its training could not go on after the last iteration; empty: it did not diverge.
    """

    FIGURES = ComparedFigures
    world: str
    algorithm: str
    seed: int
    setting: dict[str, Any]
    optimum: float
    number: int | None = None
    diverged: str = ""

    @property
    def name(self) -> str:
        number = "" if self.number is None else f"-{self.number}"
        return f"{self.world}-{self.algorithm}-{self.seed}{number}"

    @property
    def complete(self) -> bool:
        """Whether all steps are used, or none can be: nothing is trained, or the training diverged."""
        used = self.figures[-1].environment_steps if self.figures else 0
        trains = self.algorithm not in ALGORITHMS or ALGORITHMS[self.algorithm].trains
        ended = not trains or bool(self.diverged) or used >= WORLDS[self.world].steps
        return bool(self.figures) and ended


async def measure(store: Store, config: Config, world: World, iteration: int) -> ComparedFigures:
    """The figures of one iteration."""
    found, costs = await world.measure(store, config, iteration), run_costs(store, config.run, iteration)
    simulated = simulated_steps(store, config.run, iteration)
    return ComparedFigures(
        iteration=iteration,
        environment_steps=collected_steps(store, config.run, iteration) + simulated,
        sampled_success=found.sampled_success,
        optimal_states=found.optimal_states,
        simulated_steps=simulated,
        generated_tokens=costs.generated_tokens,
        trained_tokens=costs.trained_tokens,
        seconds=costs.seconds,
    )


async def run(
    world: str,
    algorithm: str,
    seed: int,
    setting: Mapping[str, Any],
    *,
    data: Path,
    results: Path,
    number: int | None = None,
    iterations: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Compared:
    """Run an algorithm, or go on with it; a complete result is read and nothing is run.

    Args:
        world, algorithm: their names.
        seed: of model, world and run.
        setting: of the algorithm.
        data: data root; each world has a store of its own below it.
        results: folder of the result's file.
        number: of the setting, in a grid.
        iterations: at most so many.
        changes: further fields, for a test.

    Raises:
        ConfigError: the algorithm can't run in this world.
        StageFailed: a stage failed, and not because training diverged after the first iteration.
        SystemExit: the store holds the run with another configuration.
    """
    place, store = WORLDS[world], Store(data / world)
    model = store.cache_dir / f"model-{seed}"
    config = configure(world, algorithm, seed, setting, model.resolve(), changes)
    if number is not None:
        config = config.model_copy(update={"run": f"{config.run}-{number}"})
    begun = Compared(
        world, algorithm, seed, {**setting}, place.optimum(config), number,
        configuration=configuration_digest(config),
    )  # fmt: skip
    file = results / f"{begun.name}.json"
    if file.exists():
        before = read_result(file, Compared)
        if before.complete and before.configuration == begun.configuration:
            return before
    place.make_model(model, seed)
    check_config(config, store.root)
    once = None if ALGORITHMS[algorithm].trains else 1
    try:
        return await go_on(
            store, config, begun, results, lambda iteration: measure(store, config, place, iteration),
            steps=place.steps, iterations=once or iterations,
        )  # fmt: skip
    except StageFailed as failed:
        last = read_result(file, Compared) if file.exists() else begun
        known = last.figures and last.configuration == begun.configuration
        if not (known and isinstance(failed.__cause__, TrainingDiverged)):
            raise
        ended = replace(last, diverged=str(failed))
        write_result(results, ended)
        return ended
