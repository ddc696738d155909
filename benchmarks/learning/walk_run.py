"""One run of a pretrained language model on the line walk, measured after each iteration against exact Q*.

Two experiments run so: `LEARNED_ROLES`, where rules play backup, evaluator and refiner, and `ALL_ROLES`, where the
model plays every role. A run can be killed and goes on: iterations are committed in the store, and the result's file
is written after each. Figures are defined in `tasks.environments.line_walk.measures`; nothing here computes anything
of the algorithm.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.environment_steps import used_steps
from benchmarks.learning.improvement_signal import improvement_signal
from benchmarks.learning.measured_run import Asked, Map, foresee, measuring, policy_table, stacked
from benchmarks.learning.result_files import Result, WalkFigures, configuration_digest
from benchmarks.learning.resumed_run import finished, go_on
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config, merge
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.datasets.line_walk import demonstrations
from tasks.environments.line_walk import LineWalk, measures
from tasks.environments.line_walk.text import ACTIONS, mean_value, read_description
from tasks.pipeline.ceiling import ceiling_config
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import frozen_config, settle
from tasks.pipeline.registry import stages_of

PROOFS = PROJECT_ROOT / "configs" / "proofs"
CEILING = "ceiling"
CEILING_ROWS = 768
RANKED_MAPS = 6  # of the held-out ones, spread over their patterns
LONGER: dict[str, Any] = {
    "environment": {"options": {"cells": 15, "moves": 4}}, "rollout": {"max_steps": 10}
}  # fmt: skip
AT_ONCE = {"from_iteration": 0}  # no critic to train alone
ALONE = {**AT_ONCE, "futures": 1, "rounds": 1}  # nothing is foreseen
VARIANTS: dict[str, dict[str, Any]] = {
    "nlac": {},
    "rft": {"algorithm": "rft", "improvement": AT_ONCE, "policy": {"epochs": 8}},
    "grpo": {
        "algorithm": "grpo", "improvement": AT_ONCE, "policy": {"batch_rows": 32},
        "rollout": {"episodes": 12, "first_episodes": 24, "repeats": 8, "exploration": 0.0},
    },
    "ppo": {
        "algorithm": "ppo", "improvement": AT_ONCE, "policy": {"batch_rows": 32}, "rollout": {"exploration": 0.0},
    },
    "sac": {"algorithm": "sac", "soft_q": {"discount": 0.8}},
    "nlrl": {"algorithm": "nlrl", "improvement": {**AT_ONCE, "rounds": 1, "states": 24}},
    "refiner_alone": {"algorithm": "refiner_alone", "improvement": ALONE},
    "no_bootstrap": {"backup": {"draws": 0}},
    "shuffled": {"backup": {"shuffle_labels": True}},
    CEILING: {},
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared.

    Attributes:
        config: the shipped configuration.
        variants: variant -> what differs from it.
        demonstrated: demonstrations of each role that a run is warm-started on, from random play; 0: no warm start.
    """

    config: Path
    variants: Mapping[str, Mapping[str, Any]]
    demonstrated: int = 0


WARM_START = "warm_start"
ONE_ITERATION = (CEILING, WARM_START)
LEARNED_ROLES = Experiment(PROOFS / "line_walk.yaml", VARIANTS)
ALL_ROLES = Experiment(
    PROOFS / "line_walk_all_roles.yaml",
    {
        WARM_START: {"algorithm": "react", "improvement": AT_ONCE, "evaluation": {"every": 1}},
        "nlac": {},
        "refiner_alone": {
            "algorithm": "refiner_alone", "improvement": {**ALONE, "verdict": "written", "require_gain": False}
        },
    },
    demonstrated=320,
)  # fmt: skip


def configure(
    variant: str,
    cells: int,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    experiment: Experiment = LEARNED_ROLES,
) -> Config:
    """The configuration of a run; each seed has lines of its own.

    Args:
        variant: of the experiment.
        cells: 9 or 15.
        seed: of the run and of its lines.
        changes: further fields, for a grid.
        experiment: that the run belongs to.
    """
    own = {"run": f"{variant}-{cells}-{seed}", "seed": seed, "environment": {"options": {"seed": seed}}}
    content = load_config(experiment.config).model_dump()
    for part in (LONGER if cells == 15 else {}, own, experiment.variants[variant], changes or {}):
        content = merge(content, part)
    return Config.model_validate(content)


def uniform_success(cells: int, seed: int) -> float:
    """Success of uniform play over the legal moves, on a seed's held-out lines."""
    config = configure("nlac", cells, seed)
    lines = LineWalk(**config.environment.options).lines("eval")
    return measures.success_probability(lines, [*map(measures.uniform_play, lines)], config.rollout.max_steps)


async def measure(store: Store, config: Config, iteration: int, *, critic: bool) -> WalkFigures:
    """The figures of one iteration, on the held-out lines."""
    world = LineWalk(**config.environment.options)
    lines = world.lines("eval")
    maps = [
        Map(line.name, {s: line.observation(s) for s in line.states}, line.q_star(world.gamma))
        for line in lines
    ]
    async with measuring(store, config, iteration) as ctx:
        tables = await asyncio.gather(*(policy_table(ctx, place, ACTIONS) for place in maps))
        ranked = maps[:: -(-len(maps) // RANKED_MAPS)]
        asked = await foresee(ctx, ranked, ACTIONS) if critic else []
    acted, exact = stacked(maps, tables), stacked(maps)
    done = [store.committed(config.run, stage, iteration) for stage in stages_of(config, iteration)]
    stages = [made.manifest for made in done if made is not None]
    signal = improvement_signal(store, world, config.run, iteration)
    found = WalkFigures(
        iteration=iteration,
        environment_steps=used_steps(store, config.run, iteration),
        sampled_success=measures.success_probability(lines, tables, config.rollout.max_steps),
        optimal_states=measures.optimal_share(acted, exact),
        optimal_actions=float((acted * measures.optimal_actions(exact)).sum(axis=1).mean()),
        tokens=sum(stage.tokens for stage in stages),
        seconds=sum(stage.seconds for stage in stages),
        **(asdict(signal) if signal else {}),
    )
    if asked:
        measure_critic(found, asked, stacked(ranked), world)
    return found


def measure_alone(store: Store, config: Config, iteration: int, critic: bool) -> WalkFigures:
    """The same in a process of its own, on one core."""
    import torch

    torch.set_num_threads(1)
    return asyncio.run(measure(store, config, iteration, critic=critic))


def leave_a_core() -> None:
    """Have torch compute on one core fewer in this process, if it has two."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() - 1))


def measure_critic(found: WalkFigures, asked: Sequence[Asked], exact: np.ndarray, world: LineWalk) -> None:
    """Rank of the actions of a state by the mean value of their futures, malformed futures, next cells foreseen."""
    told = [[future.description for future in one.futures] for one in asked]
    values = np.array([mean_value(texts, world.gamma) for texts in told])
    found.rank = measures.rank_agreement(values.reshape(exact.shape), exact)
    texts = [text for many in told for text in many]
    actions = [one.action for one in asked for _ in one.futures]
    found.malformed = measures.malformed_share(texts, actions)
    lines = {line.name: line for line in world.lines("eval")}
    leads = [
        lines[one.place.name].place(lines[one.place.name].leads_to(one.state, ACTIONS.index(one.action)))
        for one in asked
        for _ in one.futures
    ]
    read = [read_description(text) for text in texts]
    found.next_cell = float(
        np.mean(
            [r is not None and place in (r.cell, r.outcome) for r, place in zip(read, leads, strict=True)]
        )
    )


async def run(
    variant: str,
    seed: int,
    cells: int,
    *,
    steps: int,
    data: Path,
    results: Path,
    changes: Mapping[str, Any] | None = None,
    iterations: int | None = None,
    experiment: Experiment = LEARNED_ROLES,
    beside: bool = False,
) -> Result:
    """Iterate and measure until so many environment steps are used; go on where a run stopped.

    Args:
        variant: of the experiment.
        seed: of the run.
        cells: 9 or 15.
        steps: environment steps.
        data: data root.
        results: folder of the result's file.
        changes: further fields of the configuration.
        iterations: most of them; a warm start and a ceiling have one.
        experiment: that the run belongs to.
        beside: measure an iteration while the next one runs, in a process of its own.

    Raises:
        SystemExit: the store holds the run with another configuration.
    """
    store = Store(data)
    config = configure(variant, cells, seed, changes, experiment)
    if experiment.demonstrated:
        config = await asyncio.to_thread(demonstrated, store, config, experiment.demonstrated)
    config = settle(store, config, 0)
    check_config(config, store.root)
    if variant == CEILING:
        config = ceiling_config(store, config, CEILING_ROWS)
    if variant in ONE_ITERATION:
        iterations = 1
    begun = Result(variant, cells, seed, configuration=configuration_digest(config))
    ranks = variant in ONE_ITERATION or algorithm_of(config).has_successor
    if beside and config.model.dtype == "bfloat16":
        leave_a_core()  # to the measuring: in bfloat16 a second one gained the stages nothing
    # A process for each iteration: it outlives a run that was killed by one measuring at most.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as apart:

        def measured(iteration: int) -> Awaitable[WalkFigures]:
            if not beside:
                return measure(store, config, iteration, critic=ranks)
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(apart, measure_alone, store, config, iteration, ranks)

        return await go_on(
            store, config, begun, results, measured, steps=steps, iterations=iterations, beside=beside,
            more=lambda iteration: {"games": games(store, config.run, iteration)},
        )  # fmt: skip


def demonstrated(store: Store, config: Config, rows: int) -> Config:
    """The configuration with demonstrations from random play on the training lines of its seed; the file is written."""
    file = store.cache_dir / f"demonstrations-{config.seed}.parquet"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        demonstrations(rows, config.seed, LineWalk(**config.environment.options)).write_parquet(file)
    return config.model_copy(update={"warm_start": config.warm_start.model_copy(update={"file": str(file)})})


def games(store: Store, run: str, iteration: int) -> list[bool]:
    """Whether each eval game was won, in the newest evaluation up to an iteration; none if there is no evaluation."""
    found = (store.committed(run, "evaluation", n) for n in range(iteration, -1, -1))
    newest = next((made for made in found if made is not None), None)
    if newest is None:
        return []
    played = newest.scan("episodes").filter(split="eval").select("episode_id", "success").collect()
    return [won for _, won in sorted(played.rows(), key=lambda row: int(row[0].rpartition("/")[2]))]


async def state_before_and_after(store: Store, seed: int, cells: int = 9) -> dict[str, Any]:
    """The held-out state farthest from the goal (the first of equals), as the base model and NLAC's last iteration see
    it.

    Returns:
        observation; iteration, the last; actions: move -> its exact value, its probability, and one future of it,
        before and after.
    """
    config = configure("nlac", cells, seed)
    last = finished(store, config.run)[-1]
    frozen = frozen_config(store, config.run, last)
    assert frozen is not None
    world = LineWalk(**frozen.environment.options)
    lines = world.lines("eval")
    line, state = min(
        ((line, s) for line in lines for s in line.starts),
        key=lambda at: at[0].q_star(world.gamma)[at[1]].max(),
    )
    place = Map(line.name, {state: line.observation(state)}, line.q_star(world.gamma))
    actions: dict[str, dict[str, Any]] = {
        action: {"q": float(q)} for action, q in zip(ACTIONS, place.q_star[state], strict=True)
    }
    for when, iteration in (("before", None), ("after", last)):
        async with measuring(store, frozen, iteration) as ctx:
            [chances] = (await policy_table(ctx, place, ACTIONS))[[state]]
            for one, chance in zip(await foresee(ctx, [place], ACTIONS), chances, strict=True):
                future = one.futures[0].description
                actions[one.action] |= {f"probability_{when}": float(chance), f"future_{when}": future}
    return {"observation": line.observation(state), "iteration": last, "actions": actions}
