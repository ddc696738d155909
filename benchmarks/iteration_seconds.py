"""Where each second of an iteration goes.

python -m benchmarks.iteration_seconds [--config FILE] [--instant] [--warm-up 0]

Runs an iteration of the default configuration through a server and workers started as `nlac up` starts them, with a
stopwatch in every process (`benchmarks.timed_flows`), and puts together what they noted with the times of Prefect's own
run states. Every instant between the call of `run_deployment("nlac/iteration")` and its return is counted once: as what
began last and still went on. With --instant the roles are played by rules and training takes no time, so that what is
left is overhead. Warm-up iterations come first and are not counted: the very first of a data root also makes MLflow's
database. Prints a table, a row a stage; writes benchmarks/out/iteration_seconds.json.
"""

import asyncio
import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.checks import OUT, machine
from benchmarks.instant import instant_config
from benchmarks.own_stack import own_stack, redirect
from schemas.load import dump_config, load_config
from tasks.pipeline import STAGES

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

INSTANT = "NLAC_BENCHMARK_INSTANT"
PARENT = "the iteration's own"
COLUMNS = {
    "dispatch: wait": "wait",
    "process: start, Prefect": "start",
    "program: imports": "imports",
    "engine: imports": "torch ...",
    "engine: start": "load",
    "engine: tokenizer": "tokenizer",
    "compute": "compute",
    "commit": "commit",
    "store: decide, check": "store",
    "MLflow: import": "MLflow import",
    "MLflow: logging": "MLflow",
    "Prefect: artifacts": "artifacts",
    "flow": "flow",
    "Prefect: around the flow": "Prefect",
}
Interval = tuple[float, float, str, str]  # begin, end, stage, name
Seconds = dict[str, dict[str, float]]  # stage -> name -> seconds


def sweep(intervals: Iterable[Interval], begin: float, end: float) -> Seconds:
    """Seconds of each stage and name between two times: every instant belongs to the interval that began last, and to
    the iteration's own only where no stage is under way (what its process does beside one costs no time)."""
    known = sorted((max(b, begin), min(e, end), b, stage, name) for b, e, stage, name in intervals)
    cuts = sorted({begin, end, *(t for b, e, *_ in known if b < e for t in (b, e))})
    seconds: Seconds = defaultdict(lambda: defaultdict(float))
    going_on: list[tuple[bool, float, float, str, str]] = []  # the one that counts comes first
    waiting = deque(known)
    for left, right in pairwise(cuts):
        while waiting and waiting[0][0] <= left:
            _, until, began, stage, name = waiting.popleft()
            heappush(going_on, (stage == PARENT, -began, until, stage, name))
        while going_on and going_on[0][2] < right:
            heappop(going_on)
        if going_on:
            *_, stage, name = going_on[0]
            seconds[stage][name] += right - left
    return seconds


def of_run(root: Path, run: "FlowRun", stage: str) -> list[Interval]:
    """What is known of a flow run: its own notes, and when Prefect saw it created, begun and ended."""
    path = root / ".timing" / f"{run.id}.json"
    noted = [(i["begin"], i["end"], stage, i["name"]) for i in json.loads(path.read_text())]
    created, ended = (t.timestamp() for t in (run.created, run.end_time) if t is not None)
    started = next(begin for begin, _, _, name in noted if name.startswith("process"))
    around = (started - 1e-6, ended, stage, "Prefect: around the flow")
    return [*noted, around, (created, started, stage, "dispatch: wait")]


async def measure(root: Path, parameters: dict[str, Any], iteration: int, patience: float = 30.0) -> Seconds:
    """Run one iteration and account for its seconds."""
    from prefect.client.orchestration import get_client
    from prefect.deployments.flow_runs import arun_deployment

    begin = time.time()
    run = await arun_deployment(
        "nlac/iteration", parameters={**parameters, "iteration": iteration}, poll_interval=0.5
    )
    end = time.time()
    if run.state is None or not run.state.is_completed():
        raise SystemExit(f"the iteration ended {run.state}")
    async with get_client() as client:
        runs = {PARENT: run, **await children(client, run.id)}
    deadline = time.monotonic() + patience  # a process writes its notes when it ends
    while not all((root / ".timing" / f"{r.id}.json").exists() for r in runs.values()):
        if time.monotonic() > deadline:
            raise SystemExit("a process left no notes; see its log in Prefect's UI")
        await asyncio.sleep(0.2)
    intervals = [i for stage, r in runs.items() for i in of_run(root, r, stage)]
    return sweep([*intervals, (begin, end, PARENT, "Prefect: around the flow")], begin, end)


async def children(client: "PrefectClient", parent: UUID) -> "dict[str, FlowRun]":
    """The stages' flow runs, in order, by stage."""
    from prefect.client.schemas.objects import StateType

    from flows.hooks import children_of

    found = await children_of(client, parent, [StateType.COMPLETED])
    found.sort(key=lambda run: run.created.timestamp() if run.created else 0.0)
    return {next(s for s in STAGES if run.name.startswith(s)): run for run in found}


def show(seconds: Seconds, title: str) -> None:
    """The table: a row a stage, and their sum."""
    columns = {key: short for key, short in COLUMNS.items() if any(key in row for row in seconds.values())}
    total = {key: sum(row.get(key, 0.0) for row in seconds.values()) for key in columns}
    table = Table("seconds", *columns.values(), "all", title=title)
    for stage, row in [*seconds.items(), ("all", total)]:
        cells = [f"{row[key]:.1f}" if row.get(key, 0.0) >= 0.05 else "" for key in columns]
        table.add_row(stage, *cells, f"{sum(row.values()):.1f}", end_section=stage == list(seconds)[-1])
    Console(width=200).print(table)


def main(
    config: Annotated[Path | None, typer.Option(help="configuration; else the default one")] = None,
    instant: Annotated[bool, typer.Option("--instant", help="engines and trainer that take no time")] = False,
    warm_up: Annotated[int, typer.Option(min=0, help="iterations before the one that counts")] = 0,
    model: Annotated[str | None, typer.Option(help="with --instant: whose tokenizer is used")] = None,
) -> None:
    """Run, account, print."""
    if instant:
        os.environ[INSTANT] = "1"
    with own_stack() as root:
        chosen = instant_config("timed", model) if instant else load_config(config, {"run": "timed"})
        file = root.parent / "timed.yaml"
        file.write_text(dump_config(chosen))

        async def run() -> Seconds:
            from prefect.client.orchestration import get_client

            names = ("iteration", *STAGES)
            async with get_client() as client:
                await redirect(client, {n: f"benchmarks/timed_flows.py:{n.replace('-', '_')}" for n in names})
            for number in range(warm_up):
                await measure(root, {"config": str(file)}, number)
            return await measure(root, {"config": str(file)}, warm_up)

        seconds = asyncio.run(run())
    ordered = {name: dict(seconds[name]) for name in (*STAGES, PARENT) if name in seconds}
    show(
        ordered, "where the seconds of an iteration go" + (", engines and trainer instant" if instant else "")
    )
    OUT.mkdir(exist_ok=True)
    content = {"machine": machine(), "checks": [], "instant": instant, "seconds": ordered}
    (OUT / "iteration_seconds.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
