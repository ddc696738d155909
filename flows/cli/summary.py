"""What `nlac iterate` prints at the end: the table of stages, what came of them, where the data is, how to go on."""

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from schemas.config import Config
from schemas.data_url import url_of
from schemas.load import data_root
from schemas.shown import visible
from storage.store import Store
from tasks.export.report import report_of
from tasks.export.report_pages import outcome_lines
from tasks.pipeline.iterations import result_row
from tasks.pipeline.registry import stages_of
from tasks.pipeline.runner import StageResult

FIRST_QUERY = (
    "select run, iteration, avg(success::int) as success from episodes "
    "where split='eval' group by all order by all"
)


def nlac_command(root: Path) -> tuple[str, str]:
    """How the user calls nlac, and the option that names this data root if it is not the usual one."""
    program = Path(sys.argv[0])
    here = (
        program.relative_to(Path.cwd())
        if program.is_absolute() and program.is_relative_to(Path.cwd())
        else program
    )
    return str(here), "" if root == data_root() else f" --data {url_of(root) or root}"


def retry_hint(root: Path, options: Mapping[str, object], own: bool) -> str:
    """How to go on after a failure.

    Args:
        root: the data root.
        options: what the user gave to `nlac iterate`, by option name; None for what was not given.
        own: whether the stack was our own, so that it is stopped by now.
    """
    program, data = nlac_command(root)
    given = [f"--{name} {value}" for name, value in options.items() if value is not None]
    again = " ".join([f"{program} iterate{data}", *given]) if given or data else "make iteration"
    first = f" (after {program} up{data})" if own else ""
    return f"Each of these commands goes on at that stage{first}, and so does running again: {again}"


def summary(console: Console, store: Store, config: Config, number: int, started: float, ui_url: str) -> None:
    """Print the table of an iteration's stages, what came of it, where the data is, and what to do next.

    Args:
        console: where to print.
        store: the artifact store.
        config: the run's configuration.
        number: the iteration.
        started: when it was started (seconds since the epoch); a stage committed before was reused.
        ui_url: address of the Prefect UI.
    """
    table = Table(
        title=f"Iteration {number} of run '{config.run}'",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("stage", "rows in", "rows out", "rejected", "tokens", "seconds", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right", no_wrap=True)
    for stage in stages_of(config, number):
        committed = store.committed(config.run, stage, number)
        if committed is None:
            continue
        # The manifest's clock has whole seconds.
        reused = datetime.fromisoformat(committed.manifest.started_at).timestamp() < int(started)
        row = result_row(stage, StageResult(committed, reused, ()))
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print()
    console.print(table)
    for line in outcome_lines(report_of(store, config.run, number)):
        console.print(visible(line))
    program, data = nlac_command(store.root)
    console.print(f"The data lies in {store.place.shown(store.run_dir(config.run))}")
    console.print("To go on:")
    for command, purpose in (
        (f"{program} up{data}", f"the Prefect UI, at {ui_url}"),
        (f"{program} mlflow-ui{data}", "the MLflow UI"),
        (f"{program} report{data} {number} --run {config.run}", "the whole page of this iteration"),
        (f"{program} view{data} --run {config.run}", "its episodes and texts, as a page for a browser"),
        (f'{program} sql{data} "{FIRST_QUERY}"', "a first query"),
    ):
        console.print(f"  {command}   # {purpose}")
