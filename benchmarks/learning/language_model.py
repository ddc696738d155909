"""The proof with a pretrained language model: SmolLM2-135M-Instruct learns policy and successor on the line walk.

    python -m benchmarks.learning.language_model run nlac --seed 0      one run; started again, it goes on
    python -m benchmarks.learning.language_model report                 table, picture and checks of all results
    python -m benchmarks.learning.language_model texts --seed 0         a state of a finished run, before and after

`make learn-lm` does both. Rules play backup, evaluator and refiner: they read their prompt and never plan. A run's
result is a file of docs/results/language_model. Bars and settings: docs/learning.md. The checks go to
benchmarks/out/language_model.json.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks.checks import OUT, Check, check, finish, print_figures
from benchmarks.learning import walk_run
from benchmarks.learning.curves import plot
from benchmarks.learning.measured_run import at_steps, final, finals
from benchmarks.learning.result_files import Result, read_results
from benchmarks.learning.walk_run import CEILING, VARIANTS
from schemas.load import PROJECT_ROOT
from storage.store import Store

RESULTS = PROJECT_ROOT / "docs" / "results" / "language_model"
TEXTS = PROJECT_ROOT / "docs" / "results" / "language_model_texts.json"
PICTURE = PROJECT_ROOT / "docs" / "images" / "language_model.png"
STEPS = {9: 4000, 15: 8000}
"""Cells -> environment steps at which runs are compared."""
SEEDS = (0, 1, 2)
LEAST = 0.85  # success and rank on nine cells
CAPTION = "rules play backup, evaluator and refiner"
FIGURES = ("sampled_success", "optimal_states", "optimal_actions", "rank", "next_cell", "malformed")
Variant = StrEnum("Variant", {name: name for name in VARIANTS})
Runs = Mapping[tuple[str, int], Result]
"""Of one length of the line: (variant, seed) -> run."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Results = Annotated[Path, typer.Option(help="folder of results, a JSON file each")]


@app.command()
def run(
    variant: Annotated[Variant, typer.Argument(help="what runs")],
    seed: Annotated[int, typer.Option(help="of the run and its lines; 7 is for grids and not reported")] = 0,
    cells: Annotated[int, typer.Option(help="length of the line: 9 or 15")] = 9,
    steps: Annotated[int | None, typer.Option(help="environment steps; else those compared at")] = None,
    iterations: Annotated[int | None, typer.Option(help="at most so many")] = None,
    change: Annotated[str, typer.Option(help="YAML over the configuration, for a grid")] = "{}",
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "language_model",
    results: Results = RESULTS,
) -> None:
    """Run a variant, or go on with it; its figures are printed and written after each iteration."""
    if cells not in STEPS:
        raise typer.BadParameter(
            f"the lengths compared are {', '.join(map(str, STEPS))}", param_hint="--cells"
        )
    asyncio.run(
        walk_run.run(
            variant.value, seed, cells, steps=steps or STEPS[cells], data=data, results=results,
            changes=yaml.safe_load(change), iterations=iterations, beside=True,
        )
    )  # fmt: skip


def at_bar(runs: Runs, variant: str, seed: int, figure: str, steps: int) -> float:
    """A figure of a run at so many environment steps, the mean of three iterations; nan where the run is missing, or
    has not used as many."""
    result = runs.get((variant, seed))
    if result is None or not result.figures or result.figures[-1].environment_steps < steps:
        return float("nan")
    return final(at_steps(result.figures, steps), figure)


def middle(values: Sequence[float]) -> float:
    """The median; nan where a value is."""
    return float(np.median(values))


def proof_checks(runs: Runs, steps: int) -> list[Check]:
    """The bars of nine cells: medians of three seeds; the shuffled control has one."""

    def over(variant: str, figure: str = "sampled_success") -> list[float]:
        return [at_bar(runs, variant, seed, figure, steps) for seed in SEEDS]

    def above(variant: str) -> float:
        return middle([a - b for a, b in zip(over("nlac"), over(variant), strict=True)])

    shuffled, alone = (
        at_bar(runs, variant, SEEDS[0], "sampled_success", steps) for variant in ("shuffled", "refiner_alone")
    )
    return [
        check("lm_success_median", middle(over("nlac")), ">=", LEAST),
        check("lm_above_refiner_alone_median", above("refiner_alone"), ">=", 0.5),
        check("lm_above_rft_median", above("rft"), ">=", 0.1),
        check("lm_rank_median", middle(over("nlac", "rank")), ">=", LEAST),
        check("lm_shuffled_from_refiner_alone", abs(shuffled - alone), "<=", 0.05),
    ]


def here_checks(runs: Runs, steps: int) -> list[Check]:
    """The bars that a run made here is held to by itself."""
    return [
        check(f"lm_{name}_here_seed_{seed}", at_bar(runs, variant, seed, figure, steps), ">=", LEAST)
        for variant, seed in runs
        if variant == "nlac"
        for name, figure in (("success", "sampled_success"), ("rank", "rank"))
    ]


def row(result: Result, steps: int) -> dict[str, float | str | None]:
    """A run's line of the table, up to the steps compared at."""
    reached = at_steps(result.figures, steps)
    return {
        "steps": reached[-1].environment_steps,
        "iterations": len(reached),
        **finals(reached, FIGURES),
        "tokens": sum(m.tokens for m in reached),
        "minutes": f"{sum(m.seconds for m in reached) / 60:.0f}",
    }


def origin(result: Result) -> dict[str, float | str | None]:
    """What a run was made with."""
    told = result.machine
    return {
        "configuration": result.configuration,
        "commit": result.commit,
        "date": result.date,
        "threads": f"{told['threads']} of {told['cores']}",
        "weights": told["dtype"],
        "processor": told.get("gpu") or " ".join([told["processor"], *told["flags"]]),
        "fresh optimizer": " ".join(map(str, result.fresh_optimizer)),
    }


def of_length(results: Sequence[Result], cells: int) -> Runs:
    """The runs on lines of this length."""
    return {(r.variant, r.seed): r for r in results if r.cells == cells and r.figures}


def draw(runs: Runs, cells: int) -> None:
    """The picture: a line for each run, the supervised ceiling and uniform play as levels."""
    order = [name for name in VARIANTS if name != CEILING]
    chosen = sorted((r for r in runs.values() if r.variant in order), key=lambda r: order.index(r.variant))
    ceilings = [r.figures[-1].sampled_success for r in runs.values() if r.variant == CEILING]
    PICTURE.parent.mkdir(exist_ok=True)
    plot(
        {f"{r.variant}-{r.seed}": r.figures for r in chosen},
        PICTURE,
        f"SmolLM2-135M-Instruct, {cells} cells; {CAPTION}",
        {"uniform play": middle([walk_run.uniform_success(cells, seed) for seed in SEEDS])}
        | ({CEILING: middle(ceilings)} if ceilings else {}),
    )


@app.command()
def report(
    results: Results = RESULTS,
    here: Annotated[
        Path | None, typer.Option(help="further results; those of nlac have bars of their own")
    ] = None,
) -> None:
    """Table, picture and checks of the results; ends non-zero where a bar is missed."""
    found = read_results(results, Result)
    own = read_results(here, Result) if here else []
    further = {f"{r.name} (here)": r for r in own if r.figures}
    for cells, steps in STEPS.items():
        runs = of_length(found, cells)
        rows = {r.name: r for r in runs.values()} | {n: r for n, r in further.items() if r.cells == cells}
        if rows:
            title = f"{cells} cells, up to {steps} environment steps; {CAPTION}"
            print_figures(title, {name: row(result, steps) for name, result in rows.items()})
            print_figures("Made with", {name: origin(result) for name, result in rows.items()})
    nine = of_length(found, 9)
    if nine:
        draw(nine, 9)
    checks = proof_checks(nine, STEPS[9]) + here_checks(of_length(own, 9), STEPS[9])
    curves = {r.name: asdict(r) for r in found} | {name: asdict(r) for name, r in further.items()}
    finish("language_model", "Line of nine cells", checks, curves=curves)


@app.command()
def texts(
    seed: Annotated[int, typer.Option(help="of a run of nlac whose data is here")] = 0,
    data: Annotated[Path, typer.Option(help="data root of the run")] = OUT / "language_model",
    file: Annotated[Path, typer.Option(help="JSON file to write")] = TEXTS,
) -> None:
    """What the base model and the last iteration say of one held-out state: the probability of each move, and a future
    that the critic foresees of it."""
    told = asyncio.run(walk_run.state_before_and_after(Store(data), seed))
    file.write_text(json.dumps(told, indent=1) + "\n")
    print(told["observation"])
    print_figures(f"nlac-9-{seed}, before and after iteration {told['iteration']}", told["actions"])
    print(f"written to {file}")


if __name__ == "__main__":
    app()
