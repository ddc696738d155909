"""All algorithms on two worlds with exact values: success against environment steps, tokens and seconds.

    python -m benchmarks.learning.comparison run frozen_lake nlac --seed 0   one run; started again, it goes on
    python -m benchmarks.learning.comparison grid frozen_lake nlac           choose a setting, on a seed of its own
    python -m benchmarks.learning.comparison all --seed 0                    every run of a seed that is missing
    python -m benchmarks.learning.comparison report                          page, picture and checks of the results

`make compare` does the last two. A run's result is a file of docs/results/comparison, a grid's one of
docs/results/comparison_grid. docs/comparison.md says what is compared, and how. The checks go to
benchmarks/out/comparison.json.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.checks import OUT, finish, print_figures
from benchmarks.learning import compared, comparison_page
from benchmarks.learning.compared import GRID_SEED, WORLDS, Compared, grid_of
from benchmarks.learning.learning_curve import ALONE, CORES, Processes
from benchmarks.learning.result_files import read_results
from benchmarks.processes import run_module
from schemas.load import PROJECT_ROOT
from storage.files import replace_text
from tasks.algorithms import ALGORITHMS

RESULTS = PROJECT_ROOT / "docs" / "results" / "comparison"
GRIDS = PROJECT_ROOT / "docs" / "results" / "comparison_grid"
World = StrEnum("World", {name: name for name in WORLDS})
Algorithm = StrEnum("Algorithm", {name: name for name in ALGORITHMS})

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
OfWorld = Annotated[World, typer.Argument(help="the world")]
OfAlgorithm = Annotated[Algorithm, typer.Argument(help="what runs")]
Data = Annotated[Path, typer.Option(help="data root, with a store for each world")]
Results = Annotated[Path, typer.Option(help="folder of results, a JSON file each")]
Grids = Annotated[Path, typer.Option(help="folder of what grids chose, a JSON file each")]
DATA = OUT / "comparison"


def read_choice(world: str, algorithm: str, grids: Path) -> dict[str, Any] | None:
    """What a grid chose; None where no grid of today's settings has been run."""
    file = grids / f"{world}-{algorithm}.json"
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    if [tried["setting"] for tried in found["settings"]] == list(grid_of(algorithm)):
        return found
    print(f"{file} was made of other settings; run the grid again, or remove the file")
    return None


def chosen_setting(world: str, algorithm: str, grids: Path = GRIDS) -> dict[str, Any]:
    """The winner of the algorithm's grid; the first setting where no grid has been run."""
    found = read_choice(world, algorithm, grids)
    setting: dict[str, Any] = found["setting"] if found else grid_of(algorithm)[0]
    return setting


def choices(grids: Path) -> list[dict[str, Any]]:
    """What all grids chose."""
    return [found for pair in product(WORLDS, ALGORITHMS) if (found := read_choice(*pair, grids))]


@app.command()
def run(
    world: OfWorld,
    algorithm: OfAlgorithm,
    seed: Annotated[int, typer.Option(help=f"of model, world and run; {GRID_SEED} is for grids")] = 0,
    setting: Annotated[int | None, typer.Option(help="number in the grid; else the chosen one")] = None,
    iterations: Annotated[int | None, typer.Option(help="at most so many")] = None,
    data: Data = DATA,
    results: Results = RESULTS,
    grids: Grids = GRIDS,
) -> None:
    """Run an algorithm, or go on with it; its figures are printed and written after each iteration."""
    grid = grid_of(algorithm.value)
    if setting is not None and not 0 <= setting < len(grid):
        raise typer.BadParameter(f"the grid has settings 0 to {len(grid) - 1}", param_hint="--setting")
    chosen = chosen_setting(world.value, algorithm.value, grids) if setting is None else grid[setting]
    made = asyncio.run(
        compared.run(
            world.value, algorithm.value, seed, chosen, data=data, results=results, number=setting,
            iterations=iterations,
        )
    )  # fmt: skip
    print(f"{made.name}: {'complete' if made.complete else 'not complete'}, {len(made.figures)} iterations")


def _run_apart(world: str, algorithm: str, *options: object, data: Path) -> None:
    """Run in a process of its own, on one thread; what it prints goes to a file of the data root."""
    data.mkdir(parents=True, exist_ok=True)
    log = data / ("-".join(map(str, (world, algorithm, *options))).replace("/", "_")[:120] + ".log")
    module = "benchmarks.learning.comparison"
    run_module(module, "run", world, algorithm, *options, "--data", data, log=log, environment=ALONE)


@app.command()
def grid(
    world: OfWorld,
    algorithm: OfAlgorithm,
    processes: Processes = CORES,
    data: Data = DATA,
    grids: Grids = GRIDS,
) -> None:
    """Run every setting of an algorithm on the seed of grids, and write down which is best; started again, it goes
    on."""
    results, settings = data / "grid", grid_of(algorithm.value)
    if len(settings) == 1:
        raise SystemExit(f"{algorithm.value} trains nothing, so there is no setting to choose")

    def one(number: int) -> None:
        options = ("--seed", GRID_SEED, "--setting", number, "--results", results)
        _run_apart(world.value, algorithm.value, *options, data=data)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, range(len(settings))))
    runs = [
        found
        for found in read_results(results, Compared)
        if (found.world, found.algorithm) == (world.value, algorithm.value) and found.complete
    ]
    write_choice(runs, grids)


def write_choice(runs: list[Compared], grids: Path) -> Path:
    """Write which of the complete runs of a grid has the highest mean success over the steps compared at."""
    runs = sorted(runs, key=lambda found: found.number or 0)
    first, steps = runs[0], WORLDS[runs[0].world].steps
    scores = [comparison_page.mean_success(found.figures, steps) for found in runs]
    best = runs[scores.index(max(scores))]
    content = {
        "world": first.world, "algorithm": first.algorithm, "seed": first.seed, "steps": steps,
        "settings": [{"setting": r.setting, "mean_success": s} for r, s in zip(runs, scores, strict=True)],
        "winner": best.number, "setting": best.setting, "machine": best.machine, "commit": best.commit,
        "date": best.date,
    }  # fmt: skip
    grids.mkdir(parents=True, exist_ok=True)
    path = grids / f"{first.world}-{first.algorithm}.json"
    replace_text(path, json.dumps(content, indent=1) + "\n")
    figures = {f"setting {r.number}": {"mean success": s} for r, s in zip(runs, scores, strict=True)}
    print_figures(f"{path.stem}: setting {best.number} is the best", figures)
    return path


@app.command(name="all")
def every(
    seed: Annotated[int, typer.Option(help="of the runs")] = 0,
    processes: Processes = CORES,
    data: Data = DATA,
    results: Results = RESULTS,
    grids: Grids = GRIDS,
) -> None:
    """Every world and algorithm with one seed, side by side; complete results stay as they are."""

    def one(pair: tuple[str, str]) -> None:
        _run_apart(*pair, "--seed", seed, "--results", results, "--grids", grids, data=data)
        print(f"{'-'.join(pair)}-{seed} is there", flush=True)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, product(WORLDS, ALGORITHMS)))


def current_results(results: Path, grids: Path) -> list[Compared]:
    """The complete results of today's settings; others are named and left out."""
    found = []
    for result in read_results(results, Compared):
        known = result.world in WORLDS and result.algorithm in ALGORITHMS
        setting = chosen_setting(result.world, result.algorithm, grids) if known else {}
        if not known or result.configuration != compared.digest_of(result.world, result.algorithm, setting):
            print(f"{result.name} was made with another configuration; run it again, or remove its file")
        elif not result.complete:
            print(f"{result.name} is not complete; run it again, and it goes on")
        else:
            found.append(result)
    return found


@app.command()
def report(results: Results = RESULTS, grids: Grids = GRIDS) -> None:
    """Page, picture and checks of the results; ends non-zero where a bar is missed."""
    found = current_results(results, grids)
    comparison_page.write_pages(found, choices(grids))
    comparison_page.draw(found)
    curves = {result.name: asdict(result) for result in found}
    finish("comparison", "Comparison", comparison_page.checks(found), curves=curves)


if __name__ == "__main__":
    app()
