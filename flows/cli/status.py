"""`nlac status`: what runs, how far it is, what it costs, and what failed."""

import json
import subprocess
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from flows.cli.options import Data, complete_run, known_run, open_store, say
from flows.cli.status_lines import lines, warning

if TYPE_CHECKING:
    from flows.cli.standing_models import FlowRun, RunStanding
    from flows.stack.record import Stack
    from storage.store import Store

WATCH_SECONDS = 2.0
RunOrLast = Annotated[
    str | None,
    typer.Option(help="run; else what runs, or the last that ran", autocompletion=complete_run),
]
_OPEN = ["RUNNING", "PENDING", "SCHEDULED", "CANCELLING"]


class Shown(StrEnum):
    """How a status is written."""

    text = "text"
    json = "json"


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="again every two seconds, until nothing runs or Ctrl-C")
    ] = False,
    format: Annotated[Shown, typer.Option(help="json: one object, with --watch one a line")] = Shown.text,
    run: RunOrLast = None,
    still_after: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="warn when a run has not moved for so long")
    ] = 300.0,
    data: Data = None,
) -> None:
    """Show what runs, how far it is and how long it will take, what it costs, and what failed."""
    store = open_store(data)
    while True:
        found = _look(store, run, still_after)
        if watch and format is Shown.text:
            click.clear()
        if format is Shown.json:
            typer.echo(json.dumps(found["told"]))
        else:
            say("\n".join(lines(found, still_after)))
        if not watch or all(one.state != "running" for one in found["runs"]):
            return
        time.sleep(WATCH_SECONDS)


def _look(store: "Store", run: str | None, still_after: float) -> dict[str, Any]:
    """Everything that is shown, and `told`: the same for programs."""
    from flows.stack.record import reached_stack

    up = reached_stack(store.root)
    open_runs = _flow_runs(up, _OPEN) if up else []
    failed = _flow_runs(up, ["FAILED", "CRASHED"], newest=True) if up else []
    runs, gpus = chosen_runs(store, run, open_runs, failed), list(_gpus())
    lost = _without_a_trace(failed, runs)
    told = {
        "stack": up.ui_url if up else None,
        "flow_runs": [one.model_dump(mode="json") for one in open_runs],
        "failed": lost and {**lost.model_dump(mode="json"), "reason": lost.state.message},
        "gpus": gpus,
        "runs": [{**one.model_dump(mode="json"), "warning": warning(one, still_after)} for one in runs],
    }
    return {
        "stack": up, "flow_runs": open_runs, "failed": lost, "gpus": gpus, "runs": runs, "root": store.root,
        "told": told,
    }  # fmt: skip


def _without_a_trace(failed: "list[FlowRun]", runs: "list[RunStanding]") -> "FlowRun | None":
    """The newest failed run of Prefect, where it left nothing that a run would show: it was refused at its start."""
    newest = next(iter(failed), None)
    if newest is None or newest.end_time is None:
        return None
    since = time.time() - newest.end_time.timestamp()
    shown = any(run.failure is not None and f"run:{run.run}" in newest.tags for run in runs)
    moved = any(run.still_seconds is not None and run.still_seconds < since for run in runs)
    return None if shown or moved else newest


def chosen_runs(
    store: "Store", run: str | None, flow_runs: "list[FlowRun]", failed: "list[FlowRun]"
) -> "list[RunStanding]":
    """The run that is named; else those that run, or the last that ran."""
    from flows.cli.standing import standing
    from flows.cli.summary import nlac_command

    program, option = nlac_command(store.root)
    runs = [
        found
        for name in ([known_run(store, run)] if run is not None else store.runs())
        if (found := standing(store, name, flow_runs, failed, f"{program} iterate{option} --run {name}"))
    ]
    if run is not None:
        return runs
    latest = sorted(runs, key=lambda one: float("inf") if one.still_seconds is None else one.still_seconds)
    return [one for one in runs if one.state == "running"] or latest[:1]


def _flow_runs(stack: "Stack", states: list[str], *, newest: bool = False) -> "list[FlowRun]":
    """Prefect's runs in these states, the newest first, all or some; none where its server does not answer."""
    from flows.cli.standing_models import FlowRun
    from flows.stack.api import ask_flow_runs

    wanted = {"flow_runs": {"state": {"type": {"any_": states}}}, "sort": "EXPECTED_START_TIME_DESC"}
    try:
        found = ask_flow_runs(stack, wanted, first_page=newest)
    except (OSError, ValueError):  # or what answers is no server of Prefect
        return []
    return [FlowRun.model_validate(one) for one in found]


def _gpus() -> Iterator[dict[str, str | float | None]]:
    """Use of each GPU: percent of time, megabytes; None where it does not say, as one that is split (MIG). None at all
    without nvidia-smi."""
    asked = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    command = ["nvidia-smi", asked, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    for line in done.stdout.splitlines():
        name, *figures = (cell.strip() for cell in line.split(","))
        busy, used, total = (float(cell) if cell.isdecimal() else None for cell in figures)
        yield {"name": name, "busy_percent": busy, "used_mb": used, "total_mb": total}
