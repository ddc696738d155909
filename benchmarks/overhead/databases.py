"""What an iteration costs beside the work when Prefect's and MLflow's records are in PostgreSQL, against SQLite.

python -m benchmarks.overhead.databases [--rounds 2]

Each side is the iteration of `benchmarks.overhead.pipeline` through a stack of its own, in processes of its own; the
PostgreSQL is one of Debian's package on this machine. The sides alternate, and each begins with a round that warms up.

postgres_overhead_ratio: seconds of an iteration's stage with PostgreSQL, to those with SQLite; medians.
"""

import asyncio
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.checks import OUT, check, finish, print_figures
from benchmarks.overhead.instant import instant_config
from benchmarks.overhead.own_stack import own_stack
from benchmarks.overhead.pipeline import Seconds, figures, through_server
from benchmarks.processes import run_module
from storage.databases import MLFLOW, PREFECT
from tests.support.postgres import postgres, programs

GOAL = 1.1


def measure(rounds: int, file: Path) -> None:
    """Measure one side, with the databases that the environment names."""
    with own_stack() as root:
        file.write_text(json.dumps(asyncio.run(through_server(root, instant_config("there", None), rounds))))


def main(
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds of each pass")] = 2,
    passes: Annotated[int, typer.Option(min=1, help="of each side, in turn")] = 1,
    side: Annotated[Path | None, typer.Option(help="measure here, into this file", hidden=True)] = None,
) -> None:
    """Compare, print, write benchmarks/out/databases.json."""
    if side is not None:
        return measure(rounds, side)
    if programs() is None:
        raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")
    measured: dict[str, Seconds] = {name: {"iteration": [], "empty": []} for name in ("SQLite", "PostgreSQL")}
    OUT.mkdir(exist_ok=True)
    with postgres() as server, TemporaryDirectory() as folder:
        for number in range(passes):
            named = {PREFECT: server.create(f"prefect-{number}"), MLFLOW: server.create(f"mlflow-{number}")}
            for name, environment in (("SQLite", dict.fromkeys(named, "")), ("PostgreSQL", named)):
                file, log = Path(folder) / "seconds.json", OUT / f"databases-{name}.log"
                arguments = ("--rounds", rounds, "--side", file)
                run_module("benchmarks.overhead.databases", *arguments, log=log, environment=environment)
                for kind, seconds in json.loads(file.read_text()).items():
                    measured[name][kind] += seconds
    print_figures("seconds", {name: figures(seconds) for name, seconds in measured.items()})
    stage = {name: statistics.median(seconds["iteration"]) for name, seconds in measured.items()}
    ratio = check("postgres_overhead_ratio", stage["PostgreSQL"] / stage["SQLite"], "<=", GOAL)
    finish("databases", "Overhead by database", [ratio], seconds=measured)


if __name__ == "__main__":
    typer.run(main)
