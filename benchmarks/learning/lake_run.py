"""One run on FrozenLake through the program's own stages, measured after each iteration against exact Q*.

`python -m benchmarks.learning.lake_run JOB.json` runs one job in a process of its own (one thread) and writes
`measures.json` beside its data; `benchmarks.learning.learning_curve` starts these. Figures are defined in
`tasks.environments.frozen_lake.measures`; nothing here computes anything of the algorithm.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.environment_steps import collected_steps, simulated_steps
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.history import State
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.engines.protocol import Adapter
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
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.iterations import run_iteration
from tasks.roles.evaluator import evaluate
from tasks.roles.successor import predict_futures
from tasks.runtime.context import StageContext, stage_context
from tasks.runtime.stage import Inputs
from tasks.text.formats import write_action

CONFIG = PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml"
RANKED_MAPS = 24
RANKED_FUTURES = 8  # of an action, whatever k a run trains with


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
class Measured:
    """Figures after one iteration; the critic's are None where it was not measured. The environment steps so far
    count the simulated ones, played in place of predicted futures."""

    iteration: int
    environment_steps: int
    sampled_success: float
    optimal_states: float
    rank: float | None = None
    verdict_auroc: float | None = None
    verdict_ceiling: float | None = None
    malformed: float | None = None
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


@asynccontextmanager
async def measuring(store: Store, config: Config, iteration: int) -> AsyncIterator[StageContext]:
    """What a stage has around it, to ask questions of the parameters that an iteration left."""
    inputs = Inputs(adapters=_parameters(store, config, iteration))
    ctx = stage_context(config, algorithm_of(config), "measure", inputs, store.cache_dir, iteration=iteration)
    try:
        yield ctx
    finally:
        await ctx.roles.close()


def _parameters(store: Store, config: Config, iteration: int) -> dict[str, Adapter | None]:
    policy = resolve_inputs(store, config, "evaluation", iteration).adapters["policy"]
    critic = policy
    if algorithm_of(config).has_critic:
        critic = resolve_inputs(store, config, "critique", iteration).adapters["critic"]
    return {"policy": policy, "critic": critic, "refiner": critic}


async def policy_table(ctx: StageContext, lake: Lake) -> np.ndarray:
    """Probability of each action in each state, [states, 4]; what is missing from 1 is no action at all."""

    async def probability(cell: int, action: str) -> float:
        messages = ctx.prompts.policy_messages(State((), lake.observations[cell]))
        scored = await ctx.roles.scores(
            "policy",
            messages,
            (write_action("", action),),
            adapter="policy",
            request_key=f"{lake.seed}/{cell}/{action}",
        )
        assert scored is not None
        return float(np.exp(sum(scored.segments[0])))

    table = np.zeros((len(lake.effects), len(ACTIONS)))
    cells = list(lake.reachable)
    rows = await asyncio.gather(*(asyncio.gather(*(probability(c, a) for a in ACTIONS)) for c in cells))
    table[cells] = rows
    return table


async def measure(store: Store, config: Config, iteration: int, *, critic: bool) -> Measured:
    """Everything about one iteration."""
    environment = FrozenLake(**config.environment.options)
    held_out = environment.lakes("eval")
    simulated = simulated_steps(store, config.run, iteration)
    async with measuring(store, config, iteration) as ctx:
        tables = await asyncio.gather(*(policy_table(ctx, lake) for lake in held_out))
        pairs = list(zip(held_out, tables, strict=True))
        q_star = [lake.q_star(environment.gamma) for lake in held_out]
        found = Measured(
            iteration=iteration,
            environment_steps=collected_steps(store, config.run, iteration) + simulated,
            sampled_success=float(
                np.mean([measures.success_probability(lake, table) for lake, table in pairs])
            ),
            optimal_states=measures.optimal_share(
                np.concatenate([table[list(lake.reachable)] for lake, table in pairs]),
                np.concatenate([q[list(lake.reachable)] for lake, q in zip(held_out, q_star, strict=True)]),
            ),
            simulated_steps=simulated,
        )
        if critic:
            await _measure_critic(ctx, held_out[:RANKED_MAPS], found)
    return found


async def _measure_critic(ctx: StageContext, lakes: Sequence[Lake], found: Measured) -> None:
    """Rank of the predicted values within a state, AUROC of the verdict on single futures, malformed share."""
    gamma = FrozenLake(**ctx.config.environment.options).gamma

    async def one(lake: Lake, cell: int, action: str) -> tuple[float, float, float]:
        state, text = State((), lake.observations[cell]), write_action("", action)
        key = f"{lake.seed}/{cell}/{action}"

        futures = await predict_futures(ctx, state, text, RANKED_FUTURES, adapter="critic", request_key=key)
        drawn = []
        for number, (_, future) in enumerate(futures):
            single = [future.description]
            _, verdict = await evaluate(
                ctx, state, text, single, adapter="refiner", request_key=f"{key}/{number}"
            )
            good = not future.malformed and well_formed(future.description)
            drawn.append((mean_value(single, gamma), verdict.optimal is True, good))
        values, yes, good = zip(*drawn, strict=True)
        return float(np.mean(values)), float(np.mean(yes)), float(np.mean(good))

    asked = [(lake, cell, action) for lake in lakes for cell in list(lake.reachable) for action in ACTIONS]
    answers = np.array(await asyncio.gather(*(one(*question) for question in asked)))
    shape = (-1, len(ACTIONS))
    q_star = np.concatenate([lake.q_star(gamma)[list(lake.reachable)] for lake in lakes])
    optimal = measures.optimal_actions(q_star).ravel()
    found.rank = measures.rank_agreement(answers[:, 0].reshape(shape), q_star)
    found.verdict_auroc = measures.auroc(answers[:, 1], optimal)
    truth = [
        judged_optimal(
            read_observation(lake.observations[cell]), [measures.exact_future(lake, cell, a, q, gamma)]
        )
        for lake in lakes
        for q in [lake.q_star(gamma)]
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
        measured.append(await measure(store, config, iteration, critic=iteration in job.critic_measured))
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
