"""What each part of the algorithm is worth on FrozenLake: NLAC without it, three seeds each.

    python -m benchmarks.learning.ablations [--variant no-ema --variant priorities]

Runs are those of `benchmarks.learning.learning_curve` with one section of the configuration changed. A run that is
there already is not repeated. The whole algorithm is the runs of `make learn`. Priorities are the critic's NLL where
the backup's rules don't score, and the bound on the KL where they do (`priorities-kl`). Rules write one text alone, so
the bound differs from the NLL only with several draws of (a', d') (`backup.draws`). Figures are means over the last
three iterations, then over seeds, with the smallest and the largest seed. They have no bars, and go to
benchmarks/out/ablations.json.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from benchmarks.checks import OUT, finish, machine, print_figures
from benchmarks.learning.lake_run import Job, Measured
from benchmarks.learning.learning_curve import CORES, SEEDS, Processes, job, run_job
from benchmarks.learning.measured_run import final

DATA = OUT / "ablations"
PRIORITIES = {"replay": {"alpha": 0.6, "beta": 0.4}}
VARIANTS: dict[str, dict[str, Any]] = {
    "k=1": {"improvement": {"futures": 1}},
    "m=1": {"improvement": {"rounds": 1}},
    "no-ema": {"target": {"tau": 1.0}},
    "priorities": PRIORITIES,
    "priorities-kl": {
        **PRIORITIES,
        "backup": {"draws": 4},
        "engines": {
            "backup": {"backend": "scripted", "rules": "tasks.environments.frozen_lake.roles:backup"}
        },
        "roles": {"bootstrap": {"engine": "backup"}},
    },
    "no-bootstrap": {"backup": {"draws": 0}},
}
Variant = StrEnum("Variant", {name: name for name in ("whole", *VARIANTS)})
FIGURES = ("sampled_success", "optimal_states", "rank", "verdict_auroc", "malformed")


def measured(one: Job) -> list[Measured]:
    """A run's measures; it runs only where they are missing."""
    there = one.data / f"{one.name}.measured.json"
    return [Measured(**m) for m in json.loads(there.read_text())] if there.exists() else run_job(one)


def summary(runs: list[list[Measured]]) -> dict[str, list[float]]:
    """Figure -> its value in each seed."""
    return {figure: [final(run, figure) for run in runs] for figure in FIGURES}


def main(
    processes: Processes = CORES,
    data: Path = DATA,
    variant: Annotated[
        list[Variant] | None, typer.Option(help="only this one; may be repeated. Else all")
    ] = None,
) -> None:
    """Run variants and print a table."""
    data.mkdir(parents=True, exist_ok=True)
    chosen = variant or list(Variant)
    jobs = {
        (one.value, seed): job(f"nlac-{seed}", seed)
        if one is Variant.whole
        else job(f"{one.value.replace('=', '')}-{seed}", seed, data=data, **VARIANTS[one.value])
        for one in chosen
        for seed in SEEDS
    }
    with ThreadPoolExecutor(processes) as pool:
        runs = dict(zip(jobs, pool.map(measured, jobs.values()), strict=True))
    found = {one.value: summary([runs[one.value, seed] for seed in SEEDS]) for one in chosen}
    told = {
        name: {figure: f"{mean(v):.3f} ({min(v):.3f}-{max(v):.3f})" for figure, v in figures.items()}
        for name, figures in found.items()
    }
    print_figures(f"Ablations ({machine()})", told)
    finish("ablations", "Ablations", [], ablations=found)


if __name__ == "__main__":
    typer.run(main)
