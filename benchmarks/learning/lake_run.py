"""One run on FrozenLake through the program's own stages, measured after each iteration against exact Q*.

`python -m benchmarks.learning.lake_run JOB.json` runs one job in a process of its own (one thread) and writes
`measures.json` beside its data; `benchmarks.learning.learning_curve` starts these. Figures are defined in
`tasks.environments.frozen_lake.measures`; nothing here computes anything of the algorithm.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.environment_steps import collected_steps, simulated_steps
from benchmarks.learning.measured_run import (
    Asked,
    Figures,
    Map,
    foresee,
    measuring,
    policy_table,
    stacked,
)
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.history import State
from storage.store import Store
from tasks.environments.frozen_lake import FrozenLake, measures
from tasks.environments.frozen_lake.maps import Lake
from tasks.environments.frozen_lake.text import (
    ACTIONS,
    mean_value,
    read_observation,
    well_formed,
)
from tasks.environments.frozen_lake.verdict import judged_optimal
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.iterations import run_iteration
from tasks.roles.evaluator import evaluate
from tasks.runtime.context import StageContext
from tasks.text.formats import write_action

CONFIG = PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml"
RANKED_MAPS = 24


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        name: of the run, unique in `data`.
        data: data root.
        seed: of the model and of every random stream.
        iterations: how many.
        schedule: iterations that the learning rate's decay spans (a run may stop before its end).
        critic_measured: iterations whose critic is ranked as well (it costs more than measuring the policy).
        at_least_steps: go on beyond `iterations` until this many environment steps are used.
        changes: configuration sections to update.
    """

    name: str
    data: Path
    seed: int
    iterations: int
    schedule: int
    critic_measured: tuple[int, ...] = ()
    at_least_steps: int = 0
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Measured(Figures):
    """Figures after one iteration; the critic's are None where it was not measured. The environment steps so far
    count the simulated ones, played in place of predicted futures."""

    verdict_auroc: float | None = None
    verdict_ceiling: float | None = None
    simulated_steps: int = 0


def configure(job: Job, model: Path) -> Config:
    """The shipped configuration, with the run's name, model, seed and changes."""
    config = load_config(CONFIG).model_dump()
    decay = {"decay_from": round(0.3 * job.schedule), "decay_until": job.schedule - 1}
    config |= {"run": job.name, "seed": job.seed}
    config["model"]["name"] = str(model)
    for section in ("critic", "policy"):
        config[section] |= decay
    for section, value in job.changes.items():
        config[section] = {**config[section], **value} if isinstance(value, dict) else value
    return Config.model_validate(config)


def lake_map(lake: Lake, gamma: float) -> Map:
    """A lake as it is asked about."""
    return Map(str(lake.seed), {s: lake.observations[s] for s in lake.reachable}, lake.q_star(gamma))


async def measure(store: Store, config: Config, iteration: int, *, ranked_maps: int) -> Measured:
    """Everything about one iteration; the critic is measured on so many maps."""
    environment = FrozenLake(**config.environment.options)
    held_out = environment.lakes("eval")
    maps = [lake_map(lake, environment.gamma) for lake in held_out]
    simulated = simulated_steps(store, config.run, iteration)
    async with measuring(store, config, iteration) as ctx:
        tables = await asyncio.gather(*(policy_table(ctx, place, ACTIONS) for place in maps))
        reached = [
            measures.success_probability(lake, table) for lake, table in zip(held_out, tables, strict=True)
        ]
        found = Measured(
            iteration=iteration,
            environment_steps=collected_steps(store, config.run, iteration) + simulated,
            sampled_success=float(np.mean(reached)),
            optimal_states=measures.optimal_share(stacked(maps, tables), stacked(maps)),
            simulated_steps=simulated,
        )
        if ranked_maps:
            await _measure_critic(ctx, held_out[:ranked_maps], maps[:ranked_maps], found)
    return found


async def _measure_critic(
    ctx: StageContext, lakes: Sequence[Lake], maps: Sequence[Map], found: Measured
) -> None:
    """Rank of the predicted values within a state, AUROC of the verdict on single futures, malformed share."""
    gamma = FrozenLake(**ctx.config.environment.options).gamma

    async def judge(asked: Asked) -> tuple[float, float, float]:
        state, text = State((), asked.place.observations[asked.state]), write_action("", asked.action)
        key = f"{asked.place.name}/{asked.state}/{asked.action}"
        drawn = []
        for number, future in enumerate(asked.futures):
            single = [future.description]
            _, verdict = await evaluate(
                ctx, state, text, single, adapter="refiner", request_key=f"{key}/{number}"
            )
            good = not future.malformed and well_formed(future.description)
            drawn.append((mean_value(single, gamma), verdict.optimal is True, good))
        values, yes, good = zip(*drawn, strict=True)
        return float(np.mean(values)), float(np.mean(yes)), float(np.mean(good))

    answers = np.array(await asyncio.gather(*map(judge, await foresee(ctx, maps, ACTIONS))))
    q_star = stacked(maps)
    optimal = measures.optimal_actions(q_star).ravel()
    found.rank = measures.rank_agreement(answers[:, 0].reshape(q_star.shape), q_star)
    found.verdict_auroc = measures.auroc(answers[:, 1], optimal)
    truth = [
        judged_optimal(
            read_observation(lake.observations[cell]),
            [measures.exact_future(lake, cell, a, place.q_star, gamma)],
        )
        for lake, place in zip(lakes, maps, strict=True)
        for cell in lake.reachable
        for a in range(len(ACTIONS))
    ]
    found.verdict_ceiling = measures.auroc(np.array(truth, dtype=float), optimal)
    found.malformed = 1.0 - float(answers[:, 2].mean())


async def run(job: Job) -> list[Measured]:
    """Iterate and measure."""
    store = Store(job.data)
    model = make_word_model(job.data / f"model-{job.seed}", job.seed)
    config = configure(job, model)
    measured: list[Measured] = []
    while len(measured) < job.iterations or (
        measured[-1].environment_steps < job.at_least_steps and len(measured) < 4 * job.iterations
    ):
        iteration, began = len(measured), time.monotonic()
        await run_iteration(store, config, iteration)
        iterated = time.monotonic()
        ranked = RANKED_MAPS if iteration in job.critic_measured else 0
        measured.append(await measure(store, config, iteration, ranked_maps=ranked))
        figures = " ".join(f"{k} {v:.3f}" for k, v in asdict(measured[-1]).items() if isinstance(v, float))
        print(
            f"{job.name} {iteration}: {measured[-1].environment_steps} steps, {figures} "
            f"({iterated - began:.0f} + {time.monotonic() - iterated:.0f} s)",
            flush=True,
        )
    return measured


def main(path: Path) -> None:
    """Run the job described by a JSON file; its measures are written beside it."""
    content = json.loads(path.read_text())
    job = Job(
        **{**content, "data": Path(content["data"]), "critic_measured": tuple(content["critic_measured"])}
    )
    measured = asyncio.run(run(job))
    path.with_suffix(".measured.json").write_text(json.dumps([asdict(m) for m in measured]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
