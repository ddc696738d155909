"""NLAC with one small language model in every role: GuessTheNumber after a warm start, against no NLAC.

    python -m benchmarks.learning.guess_number [--minutes 60] [--data DIR]

Runs configs/proofs/guess_number_smollm2.yaml in this process through the program's own stages: demonstrations
from random play, the warm start, its policy evaluated (algorithm react), then as many iterations as are begun
before the minutes are over, evaluations included; started again, it goes on. Each policy plays the same games
with the same seeds. What is printed, and written to benchmarks/out/guess_number.json, is a table without
bars.
"""

import asyncio
import time
from dataclasses import asdict
from math import comb
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from benchmarks.checks import OUT, finish, machine, print_figures
from benchmarks.learning.critic_fidelity import critic_fidelity
from benchmarks.learning.measured_run import measuring
from schemas.config import Config
from schemas.load import load_config
from storage.history import rebuild_states
from storage.store import Store, scan_parts
from tasks.datasets.guess_number import demonstrations
from tasks.environments.base import ActionFormat
from tasks.environments.guess_number import possible_share
from tasks.pipeline.iterations import run_iteration, run_stages, settle
from tasks.pipeline.registry import stages_of

CONFIG = "configs/proofs/guess_number_smollm2.yaml"
ROWS = 160  # demonstrations of each role


Figures = dict[str, float | str | None]


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of `won` and `lost` discordant pairs under fair coins (McNemar 1947)."""
    pairs, fewer = won + lost, min(won, lost)
    tail: float = sum(comb(pairs, n) for n in range(fewer + 1)) / 2**pairs
    return min(1.0, 2 * tail)


OF_STAGES = {
    "label_next": ("cot-correction", "discount_next"),
    "label_future": ("cot-correction", "discount_future"),
    "optimal": ("critique", "optimal_share"),
    "changed": ("refinement", "changed_share"),
}


async def measure(store: Store, config: Config, iteration: int, baseline: dict[str, bool]) -> Figures:
    """One policy's evaluation and its critic's fidelity.

    Returns:
        success, low, high: rate over the evaluation games, with its 95% Wilson interval.
        invalid: share of actions that the game refused or that did not parse.
        turns: mean actions of a game.
        possible: share of actions that the hints had left possible. There are many more actions than games.
        won_alone, lost_alone: games that this policy wins and the warm-started one does not, and the reverse.
        p: two-sided exact McNemar test of those.
        hints, best_hints, malformed: see `Fidelity`.
        drift, kl: of the policy from the base model on general prompts, nats a token (`tasks.measures.retention`).
        label_next, label_future: shares of the words of this iteration's labels that come from s' or r alone and from
            d' alone (`tasks.text.discounting`); None for the warm start.
        optimal, changed: shares of judged actions that the evaluator calls optimal, and of distilled ones that
            refinement has changed; None likewise.
        judged_possible, distilled_possible: shares of the actions that were to be improved, and of those distilled,
            that the hints had left possible; None likewise.
        seconds: of its stages, the warm start (in iteration 0) and the evaluation included.
    """
    made = store.committed(config.run, "evaluation", iteration)
    assert made is not None
    row = made.scan("evaluations").filter(split="eval").collect().row(0, named=True)
    games = dict(made.scan("episodes").select("task_id", "success").collect().rows())
    won = sum(games[task] and not baseline[task] for task in games)
    lost = sum(baseline[task] and not games[task] for task in games)
    async with measuring(store, config, iteration) as ctx:
        critic = await critic_fidelity(ctx, made)
        form = ctx.environment.action_format
    steps = made.scan("transitions").select("transition_id", "raw_action").collect()
    states = rebuild_states(made.scan("transitions"), steps["transition_id"])
    found = {stage: store.committed(config.run, stage, iteration) for stage in stages_of(config, iteration)}
    stages = {stage: done.manifest for stage, done in found.items() if done}
    told = {
        name: stages[stage].metrics.get(metric) if stage in stages else None
        for name, (stage, metric) in OF_STAGES.items()
    }
    return dict(
        success=row["success_rate"], low=row["success_low"], high=row["success_high"],
        invalid=row["invalid_action_rate"], turns=row["mean_turns"],
        possible=possible_share(states, steps.rows(), form), won_alone=won, lost_alone=lost,
        p=mcnemar(won, lost), **asdict(critic),
        drift=made.manifest.metrics["retention_drift"], kl=made.manifest.metrics["retention_kl"],
        seconds=sum(manifest.seconds for manifest in stages.values()), **told,
        **improved_shares(store, config, iteration, form),
    )  # fmt: skip


def improved_shares(
    store: Store, config: Config, iteration: int, form: ActionFormat
) -> dict[str, float | None]:
    """`judged_possible` and `distilled_possible` of `measure`."""
    critique, refinement = (
        store.committed(config.run, stage, iteration) for stage in ("critique", "refinement")
    )
    if critique is None or refinement is None:
        return {"judged_possible": None, "distilled_possible": None}
    judged = critique.scan("critiques").filter(pl.col("round") == 0)
    distilled = refinement.scan("refinements").filter("distil")
    played = [c for i in range(iteration + 1) if (c := store.committed(config.run, "rollout", i))]
    texts = {
        name: table.select("transition_id", "action_text").collect()
        for name, table in {"judged_possible": judged, "distilled_possible": distilled}.items()
    }
    wanted = pl.concat(texts.values())["transition_id"]
    states = rebuild_states(scan_parts(played, "transitions"), wanted)
    return {name: possible_share(states, rows.rows(), form) for name, rows in texts.items()}


def configured(file: Path, **changes: object) -> Config:
    """The shipped configuration with these demonstrations."""
    content = load_config(CONFIG).model_dump()
    content["warm_start"]["file"] = str(file)
    return Config.model_validate({**content, **changes})


async def experiment(data: Path, file: Path, minutes: float) -> None:
    """Warm start on a file of demonstrations, its evaluation, then iterations; the table after each."""
    store = Store(data)
    config = settle(store, configured(file), 0)
    react = settle(store, configured(file, run=f"{config.run}-react", algorithm="react"), 0)
    await run_iteration(store, react, 0)
    evaluated = store.committed(react.run, "evaluation", 0)
    assert evaluated is not None
    baseline = dict(evaluated.scan("episodes").select("task_id", "success").collect().rows())
    policies = {"warm start": await measure(store, react, 0, baseline)}
    title = f"GuessTheNumber ({machine()})"
    print_figures(title, policies)
    await run_stages(store, config, ("warm-start",))
    clock, iteration = time.monotonic(), 0
    while time.monotonic() - clock < 60 * minutes:
        await run_iteration(store, config, iteration)
        policies[f"iteration {iteration}"] = await measure(store, config, iteration, baseline)
        print_figures(title, policies)
        iteration += 1
    finish("guess_number", "GuessTheNumber", [], policies=policies)


def demonstrated(data: Path) -> Path:
    """The file of demonstrations, made where it is missing."""
    file = data / "guess_number.parquet"
    if not file.exists():
        data.mkdir(parents=True, exist_ok=True)
        demonstrations(ROWS, 0).write_parquet(file)
    return file


def main(
    minutes: Annotated[float, typer.Option(help="no iteration is begun after them")] = 60.0,
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "guess_number",
) -> None:
    """Run the experiment; started again, it goes on where it stopped."""
    asyncio.run(experiment(data, demonstrated(data), minutes))


if __name__ == "__main__":
    typer.run(main)
