"""`nlac config`: check a configuration, or show it with every default."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import (
    USAGE,
    AllowImport,
    Data,
    ListAs,
    ListFormat,
    fail,
    load,
    open_store,
    say,
    say_json,
)

app = typer.Typer(no_args_is_help=True, help="Check or show a configuration.")
if TYPE_CHECKING:
    from tasks.pipeline.gpu_memory import Footprint
    from tasks.pipeline.plan import PlanRow

HOUR = 3600.0
File = Annotated[Path | None, typer.Argument(help="configuration; else configs/default.yaml")]


@dataclass(frozen=True)
class RunCost:
    """What a run takes at most, at measured or stated rates.

    Attributes:
        iterations: how many.
        hours: of the run.
        gpu_hours: of all GPUs of the host, rented as long.
        gpu_hour_price: of one; None where none was stated.
        price: of all.
    """

    iterations: int
    hours: float
    gpu_hours: float
    gpu_hour_price: float | None
    price: float | None

    def said(self) -> str:
        """One line for people."""
        text = f"{self.iterations:,} iterations: at most {self.hours:,.1f} hours, {self.gpu_hours:,.0f} GPU hours"
        return text + (
            "." if self.price is None else f", {self.price:,.0f} at {self.gpu_hour_price:g} a GPU hour."
        )


@app.command()
def check(
    file: File = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="for another machine: models, vLLM, a GPU, API keys, the environment's package and its files need not "
            "be on this one",
        ),
    ] = False,
    gpu: Annotated[
        float | None,
        typer.Option(help="GiB of memory of a GPU: estimate what training and vLLM need of it", min=1),
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of the host", min=1)] = 1,
    generated_per_second: Annotated[
        float | None,
        typer.Option(help="tokens that inference stages write per second, for an estimate of time"),
    ] = None,
    trained_per_second: Annotated[
        float | None, typer.Option(help="label tokens that training stages take per second, likewise")
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help="of a run: estimate its GPU hours; needs measured or stated rates", min=1),
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="of one GPU: estimate what those hours cost", min=0)
    ] = None,
    format: ListAs = ListFormat.table,
    data: Data = None,
    allow_import: AllowImport = None,
) -> None:
    """Check a configuration whole, and print what an iteration would do. Creates nothing below the data root,
    and imports nothing from outside this program that is not allowed. Rates that the run has measured come before
    stated ones."""
    from tasks.algorithms import algorithm_of
    from tasks.pipeline.checks import check_config
    from tasks.pipeline.gpu_memory import GIB, footprints
    from tasks.pipeline.iterations import dtype_choice, next_iteration
    from tasks.pipeline.plan import measured_rates, plan, run_seconds

    config, store = load(file), open_store(data)
    check_config(config, store.root, elsewhere=elsewhere)
    stated = {"inference": generated_per_second, "training": trained_per_second}
    measured = measured_rates(store, config.run)
    planned = plan(config, measured, stated)
    needed = list(footprints(config, algorithm_of(config), gpu * GIB, gpus)) if gpu is not None else []
    cost = None
    if iterations is not None or gpu_hour_price is not None:
        hours = run_seconds(config, iterations or 1, measured, stated) / HOUR
        if not hours:
            fail("no rate is known; give --generated-per-second and --trained-per-second", USAGE)
        price = None if gpu_hour_price is None else gpu_hour_price * hours * gpus
        cost = RunCost(iterations or 1, hours, hours * gpus, gpu_hour_price, price)
    choice = None if elsewhere else dtype_choice(store, config, next_iteration(store, config.run))
    if format is ListFormat.json:
        stages = [
            {"stage": r.stage, "pool": r.pool, **asdict(r.bound), "seconds": r.seconds} for r in planned
        ]
        said: dict[str, Any] = {"stages": stages, "memory": [asdict(one) for one in needed]}
        said |= {"cost": asdict(cost)} if cost else {}
        say_json(said | ({"dtype": choice.model_dump()} if choice else {}))
    else:
        print_plan(planned)
        if cost is not None:
            typer.echo(cost.said())
        if gpu is not None:
            print_memory(needed, gpu)
    if not all(one.fits for one in needed):
        remedies = "; ".join(dict.fromkeys(one.remedy for one in needed if not one.fits))
        fail(f"The configuration does not fit into {gpus} x {gpu:g} GiB: {remedies}", USAGE)
    if format is ListFormat.json:
        return
    if choice is None:
        typer.echo(
            "\nNot checked: what must be on the machine that it is for: models, vLLM, GPU, API keys, data root, the "
            "environment's package and files."
        )
    else:
        say(f"\nmodel.dtype: {choice.dtype}, {choice.reason}")
    typer.echo("\nThe configuration can be used. Requests and tokens are upper bounds of one iteration.")


def print_plan(planned: "Sequence[PlanRow]") -> None:
    """The stages with their bounds, and their hours where a rate is known."""
    timed = any(row.seconds for row in planned)
    rows = [("stage", "pool", "requests", "tokens", "hours" if timed else "", "")]
    rows += [
        (
            r.stage, r.pool, f"{r.bound.requests:,}", f"{r.bound.tokens:,}",
            f"{r.seconds / HOUR:.2f}" if r.seconds else "", r.bound.note,
        )
        for r in planned
    ]  # fmt: skip
    print_table(rows, "llrrrl")
    if timed:
        total = sum(row.seconds or 0.0 for row in planned)
        say(f"\nAt most {total / HOUR:.1f} hours an iteration, at the measured or stated rates.")


def print_memory(needed: "Sequence[Footprint]", gpu: float) -> None:
    """What training and vLLM need of each GPU, and what remains to be said of those that fit."""
    from tasks.pipeline.gpu_memory import GIB

    rows = [("memory", "GPUs", f"GiB of {gpu:g}", "each GPU holds (GiB)")]
    rows += [
        (
            one.user, str(one.gpus), f"{one.bytes / GIB:.1f}",
            ", ".join(f"{use.purpose} {use.bytes / GIB:.1f}" for use in one.uses),
        )
        for one in needed
    ]  # fmt: skip
    typer.echo()
    print_table(rows, "lrrl")
    for one in needed:
        if one.fits and one.remedy:
            say(f"{one.user}: {one.remedy}")


def print_table(rows: Sequence[Sequence[str]], sides: str) -> None:
    """Print aligned columns; `sides` has l or r for each."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    for row in rows:
        cells = (
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        )
        say("  ".join(cells).rstrip())


@app.command()
def show(file: File = None) -> None:
    """Print the resolved configuration, every field with its value, as a file that can be run; passwords as ***."""
    from schemas.load import dump_config

    typer.echo(dump_config(load(file), masked=True), nl=False)
