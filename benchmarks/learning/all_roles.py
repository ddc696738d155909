"""SmolLM2-135M-Instruct in every role of the line walk, after a warm start on demonstrations of random play.

    python -m benchmarks.learning.all_roles run nlac --seed 0     one run; started again, it goes on
    python -m benchmarks.learning.all_roles report                table and checks of all results

NLAC's policy, the warm-started policy, and the policy that the refiner alone leads to play the same games. A run's
result is a file of docs/results/all_roles. Configuration: configs/proofs/line_walk_all_roles.yaml; bars:
docs/learning.md. The checks go to benchmarks/out/all_roles.json.
"""

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks.checks import OUT, Check, check, finish, print_figures
from benchmarks.learning import walk_run
from benchmarks.learning.result_files import Result, read_results
from benchmarks.learning.walk_run import ALL_ROLES, WARM_START
from schemas.load import PROJECT_ROOT

RESULTS = PROJECT_ROOT / "docs" / "results" / "all_roles"
CELLS = 9
ITERATIONS = 12
SEEDS = (0, 1, 2)
LEAST_GAMES = 200  # of a seed
NORMAL_95 = 1.96
FIGURES = (
    "sampled_success", "optimal_states", "optimal_actions", "rank", "next_cell", "malformed", "verdict_auroc",
    "judged_value", "distilled_value",
)  # fmt: skip
Variant = StrEnum("Variant", list(ALL_ROLES.variants))
Runs = Mapping[tuple[str, int], Result]
"""(variant, seed) -> run."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Results = Annotated[Path, typer.Option(help="folder of results, a JSON file each")]


@app.command()
def run(
    variant: Annotated[Variant, typer.Argument(help="what runs")],
    seed: Annotated[int, typer.Option(help="of the run and its lines; 7 is for grids and not reported")] = 0,
    iterations: Annotated[int, typer.Option(help="at most so many")] = ITERATIONS,
    change: Annotated[str, typer.Option(help="YAML over the configuration, for a grid")] = "{}",
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "all_roles",
    results: Results = RESULTS,
) -> None:
    """Run a variant, or go on with it; its figures are printed and written after each iteration."""
    asyncio.run(
        walk_run.run(
            variant.value, seed, CELLS, steps=10**6, data=data, results=results, changes=yaml.safe_load(change),
            iterations=iterations, experiment=ALL_ROLES, beside=True,
        )
    )  # fmt: skip


def paired_differences(runs: Runs, variant: str, seed: int) -> list[int]:
    """NLAC's games less those of a variant: 1 where NLAC alone won, -1 where the variant alone did; none where a run
    is missing or played too few games."""
    pair = [runs.get(("nlac", seed)), runs.get((variant, seed))]
    if any(r is None or len(r.games) < LEAST_GAMES for r in pair):
        return []
    ours, theirs = (r.games for r in pair if r is not None)
    return [int(a) - int(b) for a, b in zip(ours, theirs, strict=True)]


def interval(differences: Sequence[int]) -> tuple[float, float, float]:
    """Mean of paired differences with its 95% interval (normal approximation); nan without any."""
    if not differences:
        return (float("nan"),) * 3
    mean, error = np.mean(differences), np.std(differences, ddof=1) / np.sqrt(len(differences))
    return float(mean), float(mean - NORMAL_95 * error), float(mean + NORMAL_95 * error)


def proof_checks(runs: Runs) -> list[Check]:
    """The bars: NLAC above the warm start and above the refiner alone, pooled and for every seed."""
    checks = []
    for variant in (WARM_START, "refiner_alone"):
        of_seeds = [paired_differences(runs, variant, seed) for seed in SEEDS]
        complete = all(of_seeds)
        pooled = interval([d for many in of_seeds for d in many]) if complete else interval([])
        worst = min(interval(many)[0] for many in of_seeds) if complete else float("nan")
        checks += [
            check(f"all_roles_above_{variant}_low", pooled[1], ">", 0.0),
            check(f"all_roles_above_{variant}_worst_seed", worst, ">", 0.0),
        ]
    return checks


def row(result: Result, runs: Runs) -> dict[str, float | str | None]:
    """A run's line of the table: its last iteration, and NLAC's paired games against it."""
    last = result.figures[-1]
    told: dict[str, float | str | None] = {
        "iterations": len(result.figures), "steps": last.environment_steps,
        "games won": f"{sum(result.games)} of {len(result.games)}",
    }  # fmt: skip
    for name in FIGURES:
        value = getattr(last, name)
        told[name] = None if value is None else f"{value:.3f}"
    mean, low, high = interval(paired_differences(runs, result.variant, result.seed))
    ours = result.variant == "nlac" or np.isnan(mean)
    told["NLAC above (95%)"] = None if ours else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
    told["minutes"] = f"{sum(m.seconds for m in result.figures) / 60:.0f}"
    return told


@app.command()
def report(results: Results = RESULTS) -> None:
    """Table and checks of the results; ends non-zero where a bar is missed."""
    found = [r for r in read_results(results, Result) if r.figures]
    runs = {(r.variant, r.seed): r for r in found}
    if found:
        title = f"SmolLM2-135M-Instruct in every role, {CELLS} cells"
        print_figures(title, {r.name: row(r, runs) for r in found})
    finish("all_roles", "A language model in every role", proof_checks(runs))


if __name__ == "__main__":
    app()
