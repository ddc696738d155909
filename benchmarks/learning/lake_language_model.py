"""SmolLM2-135M-Instruct on FrozenLake, with the settings of the line walk carried over: does it learn a world that they
were not chosen on?

    python -m benchmarks.learning.lake_language_model run nlac --seed 0     one run; started again, it goes on
    python -m benchmarks.learning.lake_language_model report                table of all results

Rules play backup, evaluator and refiner, as in `benchmarks.learning.language_model`. Figures have no bars. A run's
result is a file of docs/results/lake_language_model.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.checks import OUT, print_figures
from benchmarks.learning import lake_run
from benchmarks.learning.lake_run import Measured
from benchmarks.learning.measured_run import at_steps, finals
from benchmarks.learning.result_files import Record, configuration_digest, read_results
from benchmarks.learning.resumed_run import go_on
from benchmarks.learning.run_costs import run_costs
from benchmarks.learning.walk_run import PROOFS, VARIANTS
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config, merge
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import settle

RESULTS = PROJECT_ROOT / "docs" / "results" / "lake_language_model"
STEPS = 4000
RANKED_MAPS = 6
FIGURES = ("sampled_success", "optimal_states", "rank", "malformed", "verdict_auroc")
Variant = StrEnum("Variant", {name: name for name in ("nlac", "rft", "refiner_alone", "shuffled")})

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Results = Annotated[Path, typer.Option(help="folder of results, a JSON file each")]


@dataclass
class LakeFigures(Measured):
    """Figures after one iteration. Tokens (generated and trained on) and seconds are of all iterations so far, the
    measuring left out."""

    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class LakeResult(Record[LakeFigures]):
    """One run: variant of the algorithm, seed of run and maps."""

    FIGURES = LakeFigures
    variant: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.seed}"


def configure(variant: str, seed: int, changes: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run, with further changes; each seed has maps of its own."""
    own = {"run": f"{variant}-{seed}", "seed": seed, "environment": {"options": {"seed": seed}}}
    content = load_config(PROOFS / "frozen_lake_language_model.yaml").model_dump()
    for part in (own, VARIANTS[variant], changes or {}):
        content = merge(content, part)
    return Config.model_validate(content)


async def measure(store: Store, config: Config, iteration: int) -> LakeFigures:
    """The figures of one iteration, on the held-out maps."""
    ranks = algorithm_of(config).has_successor
    found = await lake_run.measure(store, config, iteration, ranked_maps=RANKED_MAPS if ranks else 0)
    costs = run_costs(store, config.run, iteration)
    tokens = costs.generated_tokens + costs.trained_tokens
    return LakeFigures(**asdict(found), tokens=tokens, seconds=costs.seconds)


@app.command()
def run(
    variant: Annotated[Variant, typer.Argument(help="what runs")],
    seed: Annotated[int, typer.Option(help="of the run and its maps")] = 0,
    steps: Annotated[int, typer.Option(help="environment steps")] = STEPS,
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "lake_language_model",
    results: Results = RESULTS,
) -> None:
    """Run a variant, or go on with it; its figures are printed and written after each iteration."""
    asyncio.run(run_variant(variant.value, configure(variant.value, seed), Store(data), results, steps=steps))


async def run_variant(
    variant: str, config: Config, store: Store, results: Path, *, steps: int, iterations: int | None = None
) -> LakeResult:
    """Iterate and measure until so many environment steps, or iterations, are used; go on where a run stopped."""
    config = settle(store, config, 0)
    check_config(config, store.root)
    begun = LakeResult(variant, config.seed, configuration=configuration_digest(config))
    return await go_on(
        store, config, begun, results, lambda iteration: measure(store, config, iteration), steps=steps,
        iterations=iterations,
    )  # fmt: skip


@app.command()
def report(results: Results = RESULTS) -> None:
    """The table of all results: means of the last three iterations up to the steps compared at."""
    rows: dict[str, dict[str, float | str | None]] = {}
    for result in read_results(results, LakeResult):
        reached = at_steps(result.figures, STEPS)
        rows[result.name] = {
            "steps": reached[-1].environment_steps,
            **finals(reached, FIGURES),
            "tokens": reached[-1].tokens,
            "minutes": f"{reached[-1].seconds / 60:.0f}",
            "commit": result.commit,
            "date": result.date,
        }  # fmt: skip
    print_figures("SmolLM2-135M-Instruct on FrozenLake; rules play backup, evaluator and refiner", rows)


if __name__ == "__main__":
    app()
