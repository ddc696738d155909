"""`nlac ceiling`: what the model learns from optimal play, where an environment knows it."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import AllowImport, ConfigFile, Data, Run, load, open_store

if TYPE_CHECKING:
    from tasks.runtime.progress import ProgressState

SECONDS = 5.0  # between two lines of progress


def ceiling(
    rows: Annotated[
        int, typer.Option(min=1, help="best actions to train on; futures are twice as many")
    ] = 768,
    config: ConfigFile = None,
    run: Run = None,
    data: Data = None,
    allow_import: AllowImport = None,
) -> None:
    """Fine-tune the model on optimal play and evaluate it: the supervised ceiling of a run."""
    import asyncio

    from tasks.pipeline.ceiling import ceiling_config
    from tasks.pipeline.checks import check_config
    from tasks.pipeline.iterations import run_iteration

    chosen, store = load(config, run), open_store(data)
    check_config(chosen, store.root)
    optimal = ceiling_config(store, chosen, rows)
    made = asyncio.run(run_iteration(store, optimal, 0, report=_Lines().show))[-1].committed
    row = made.scan("evaluations").filter(split="eval").collect().row(0, named=True)
    typer.echo(
        f"{made.manifest.run}: success {row['success_rate']:.3f} ({row['success_low']:.3f}-{row['success_high']:.3f}) "
        f"of {row['episodes']} held-out episodes; {row['baseline']} play {row['baseline_success_rate']:.3f}"
    )


class _Lines:
    """A line of progress now and then, on the error stream."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def show(self, state: "ProgressState") -> None:
        from tasks.runtime.progress import progress_line

        now = time.monotonic()
        if state.done == state.total or now - self._told >= SECONDS:
            self._told = now
            typer.echo(f"{state.stage}: {progress_line(state)}", err=True)
