"""The soak: processes of a run are killed at random, the run goes on, and its tables equal those of an undisturbed run.

    python -m benchmarks.reliability.soak run scripted   50 kills, at most 40 minutes; started again, it goes on
    python -m benchmarks.reliability.soak report         table and checks of all results
    python -m benchmarks.reliability.page                the table in docs/reliability.md

`make soak ARGS=scripted` is the first of these. The four runs are `scripted`, `transformers`, `served` and `mixed`
(`benchmarks.reliability.configurations`), each over a real stack of its own; with `--in-process` without Prefect. A
stage's process is killed, the iteration's, a worker, Prefect's server, the stack's supervisor, and in a served run the
model server and its supervisor: descendants of this command, never another process. A result is a file of
docs/results/soak.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import psutil
import typer

from benchmarks.checks import OUT, Check, check, finish, print_figures
from benchmarks.processes import run_module
from benchmarks.reliability.configurations import (
    RUNS,
    STAND_IN,
    configuration,
    is_served,
    make_checkpoint,
)
from benchmarks.reliability.driving import Driver
from benchmarks.reliability.results import (
    RESULTS,
    Result,
    by_stage,
    by_victim,
    read_kills,
    read_results,
    write_result,
)
from benchmarks.reliability.schedule import AT_ONCE
from benchmarks.reliability.tables import compare
from benchmarks.reliability.victims import KINDS, MODEL_KINDS, own_processes, reap
from benchmarks.reliability.ways import Deployed, InProcess
from flows.stack.processes import become_subreaper
from schemas.load import dump_config, python_path
from storage.store import Store
from storage.verify import survey, verify
from tasks.imports import allow_imports

KILLS = 50
UNFINISHED = 3  # exit code: time was over
END_SECONDS = 30.0  # for processes that notice by themselves that nobody needs them
Run = StrEnum("Run", {name: name for name in RUNS})

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Results = Annotated[Path, typer.Option(help="folder of results, a JSON file each")]


@app.command()
def run(
    name: Annotated[Run, typer.Argument(help="who plays the roles")],
    kills: Annotated[int, typer.Option(min=1, help="how many")] = KILLS,
    seed: Annotated[int, typer.Option(help="of the kills")] = 0,
    minutes: Annotated[float, typer.Option(help="stop after these; the same command goes on")] = 40.0,
    algorithm: Annotated[str, typer.Option(help="whose stages are run")] = "nlac",
    at_once: Annotated[
        float, typer.Option(help="share of kills that come before the last is recovered from", min=0, max=0.9)
    ] = AT_ONCE,
    in_process: Annotated[bool, typer.Option(help="without Prefect, a process for each iteration")] = False,
    victims: Annotated[list[str] | None, typer.Option(help="kinds to kill; else all")] = None,
    work: Annotated[Path, typer.Option(help="folder for data and notes")] = OUT / "reliability",
    results: Results = RESULTS,
) -> None:
    """Kill, go on, compare; the result is written when all kills are done and the last iteration is finished."""
    chosen = InProcess if in_process else Deployed
    known = [*chosen.kinds, *(MODEL_KINDS if is_served(name) else ())]
    kinds = [kind for kind in known if kind in (victims or known)]
    if unknown := set(victims or ()) - set(known):
        raise typer.BadParameter(
            f"{name} has no {', '.join(sorted(unknown))}, but: {', '.join(known)}", param_hint="--victims"
        )
    called = f"{name}-in-process" if in_process else str(name)
    folder = (work / f"{called}-{seed}").resolve()
    _prepare(folder)
    config = configuration(name, make_checkpoint(folder / "model"), algorithm)
    file = folder / "config.yaml"
    file.write_text(dump_config(config))
    store, notes = Store(folder / "data"), folder / "kills.jsonl"
    spent = folder / "spent.json"  # by earlier starts of this command
    before = json.loads(spent.read_text()) if spent.exists() else {"minutes": 0.0, "gaps": []}
    way = chosen(store, config.run, file)
    driver = Driver(store, config, way, kinds, f"{name} {seed}", kills, notes, at_once, before["gaps"])
    begun = time.monotonic()
    way.stop()  # of a harness that was killed: those processes are no descendants of this one
    try:
        done = driver.drive(begun + 60 * minutes)
    finally:
        driver.stop()
        took = before["minutes"] + (time.monotonic() - begun) / 60
        spent.write_text(json.dumps({"minutes": took, "gaps": driver.gaps}))
    if not done:
        print(f"{len(read_kills(notes))} of {kills} kills in {took:.1f} min; run it again to go on")
        raise typer.Exit(UNFINISHED)
    left = _orphans()
    reference = _undisturbed(folder, file, len(store.iterations(config.run)))
    found = compare(store, reference, config.run)
    result = Result(
        run=called,
        seed=seed,
        iterations=len(store.iterations(config.run)),
        minutes=round(took, 1),
        between=round(median(driver.gaps), 1) if driver.gaps else 0.0,
        tables=found.tables,
        differing=found.differing,
        lost=found.lost,
        surplus=found.surplus,
        faults=[fault.message for fault in verify(store)],
        staging=[str(path) for path in store.root.glob("*/.staging/*")],
        orphans=left,
        left=survey(store).unreferenced,
        kills=read_kills(notes),
    )
    print(f"written to {write_result(results, result)}")
    _show([result])
    if not result.whole:
        raise SystemExit(f"{name}: not whole; see {folder}")


def _prepare(folder: Path) -> None:
    """Make this process one that adopts orphans, stops what it started, and hands the stand-in on."""
    folder.mkdir(parents=True, exist_ok=True)
    become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    allow_imports(["tests"])
    os.environ["PYTHONPATH"] = python_path(STAND_IN)
    os.environ["OMP_NUM_THREADS"] = "1"  # sums of floats depend on how many threads share them


def _orphans() -> list[str]:
    """Descendants that are left, once those had their time that end by themselves."""
    deadline = time.monotonic() + END_SECONDS
    while (left := own_processes()) and time.monotonic() < deadline:
        reap()
        time.sleep(0.2)
    found = []
    for process in left:
        try:
            found.append(" ".join(process.cmdline()) or process.name())
            process.kill()
        except psutil.Error:
            continue
    return found


def _undisturbed(folder: Path, file: Path, iterations: int) -> Store:
    """The same iterations, undisturbed."""
    root = folder / "undisturbed"
    arguments = (file, root, iterations)
    run_module("benchmarks.reliability.tables", *arguments, log=folder / "undisturbed.log", environment={})
    return Store(root)


def _show(found: Sequence[Result]) -> None:
    """Print the tables."""
    kills = [kill for result in found for kill in result.kills]
    print_figures("Kills by victim", {str(line.pop("victim")): line for line in by_victim(kills)})
    kinds = [kind for kind in KINDS if any(kill.victim == kind for kill in kills)]
    stages = by_stage(kills).items()
    print_figures("Kills by stage", {stage: {k: n[k] for k in kinds} for stage, n in stages})
    runs = {
        f"{r.run}-{r.seed}": {
            "iterations": r.iterations, "minutes": r.minutes, "between commits, s": r.between, "tables": r.tables,
            "differ": len(r.differing), "lost": r.lost, "surplus": r.surplus, "faults": len(r.faults),
            "staging": len(r.staging), "orphans": len(r.orphans), "for gc": len(r.left),
        }
        for r in found
    }  # fmt: skip
    print_figures("Afterwards", runs)


def checks(found: Sequence[Result]) -> list[Check]:
    """The bars: nothing is lost, doubled or left behind."""
    kills = [kill for result in found for kill in result.kills]
    return [
        check("soak_kills", len(kills), ">=", KILLS * len(RUNS)),
        check("soak_survived", sum(k.survived for k in kills) / max(len(kills), 1), "==", 1.0),
        check("soak_tables_differing", sum(len(r.differing) for r in found), "==", 0),
        check("soak_lost_rows", sum(r.lost for r in found), "==", 0),
        check("soak_surplus_rows", sum(r.surplus for r in found), "==", 0),
        check("soak_faults", sum(len(r.faults) for r in found), "==", 0),
        check("soak_staging_folders", sum(len(r.staging) for r in found), "==", 0),
        check("soak_orphans", sum(len(r.orphans) for r in found), "==", 0),
    ]


@app.command()
def report(results: Results = RESULTS) -> None:
    """Tables and checks of the results; ends non-zero where a bar is missed."""
    found = read_results(results)
    if found:
        _show(found)
    finish("soak", "Kills", checks(found), results=[asdict(replace(r, kills=[])) for r in found])


if __name__ == "__main__":
    app()
