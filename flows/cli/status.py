"""`nlac status`: what runs, how far it is, what it costs, and what failed; `nlac report`: what an iteration came to."""

import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from flows.cli.options import (
    USAGE,
    AllowMissing,
    Data,
    committed_data,
    complete_run,
    fail,
    known_run,
    load,
    open_store,
    say,
)

if TYPE_CHECKING:
    from flows.cli.standing import FlowRun, RunStanding
    from flows.stack.control import Stack
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


class Page(StrEnum):
    """How a report is written."""

    text = "text"
    markdown = "markdown"
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
            say("\n".join(_lines(found, still_after)))
        if not watch or all(one.state != "running" for one in found["runs"]):
            return
        time.sleep(WATCH_SECONDS)


def _look(store: "Store", run: str | None, still_after: float) -> dict[str, Any]:
    """Everything that is shown, and `told`: the same for programs."""
    from flows.stack.control import read_stack

    stack = read_stack(store.root)
    up = stack if stack is not None and stack.state == "ready" else None
    open_runs, failed = (_flow_runs(up, _OPEN), _flow_runs(up, ["FAILED", "CRASHED"])) if up else ([], [])
    runs, gpus = _chosen(store, run, open_runs, failed), list(_gpus())
    told = {
        "stack": up.ui_url if up else None,
        "flow_runs": [one.model_dump(mode="json") for one in open_runs],
        "gpus": gpus,
        "runs": [{**one.model_dump(mode="json"), "warning": _warning(one, still_after)} for one in runs],
    }
    return {"stack": up, "flow_runs": open_runs, "gpus": gpus, "runs": runs, "told": told}


def _chosen(
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


def _flow_runs(stack: "Stack", states: list[str]) -> "list[FlowRun]":
    """Prefect's runs in these states, the newest first; none where its server does not answer."""
    from flows.cli.standing import FlowRun
    from flows.stack.api import ask

    wanted = {
        "flow_runs": {"state": {"type": {"any_": states}}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 200,
    }  # fmt: skip
    try:
        found: Any = ask(stack, "/flow_runs/filter", wanted)
    except OSError:
        return []
    return [FlowRun.model_validate(one) for one in found]


def _gpus() -> Iterator[dict[str, str | float]]:
    """Use of each GPU: percent of time, megabytes; none without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return
    asked = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    done = subprocess.run(
        ["nvidia-smi", asked, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10
    )
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, busy, used, total = (cell.strip() for cell in line.split(","))
        yield {"name": name, "busy_percent": float(busy), "used_mb": float(used), "total_mb": float(total)}


def _warning(run: "RunStanding", still_after: float) -> str | None:
    if run.state == "running" and run.still_seconds is not None and run.still_seconds > still_after:
        return (
            f"nothing has moved for {_duration(run.still_seconds)}; the stage's log is under .logs of the run"
        )
    return None


def _lines(found: dict[str, Any], still_after: float) -> Iterator[str]:
    stack, flow_runs = found["stack"], found["flow_runs"]
    yield f"stack: {stack.ui_url}" if stack else "stack: not up"
    for one in flow_runs:
        yield f"  {one.state_name}: {one.name}"
    for gpu in found["gpus"]:
        yield f"GPU {gpu['name']}: {gpu['busy_percent']:.0f}% busy, {gpu['used_mb']:.0f} of {gpu['total_mb']:.0f} MB"
    if not found["runs"]:
        yield "no run yet: begin one with `nlac iterate`"
    for run in found["runs"]:
        yield ""
        yield from _run_lines(run, still_after)


def _run_lines(run: "RunStanding", still_after: float) -> Iterator[str]:
    from tasks.runtime.progress import progress_line

    of = "" if run.last_iteration is None else f" of 0 to {run.last_iteration}"
    yield f"run '{run.run}', iteration {run.iteration}{of}: {run.state}" + (
        f", by {run.holder}" if run.holder else ""
    )
    if (warning := _warning(run, still_after)) is not None:
        yield f"  WARNING: {warning}"
    for stage in run.stages:
        said = {
            "committed": f"{_duration(stage.seconds)}",
            "running": progress_line(stage.progress) if stage.progress else "starting",
            "waiting": f"took {_duration(stage.seconds_left)} before"
            if stage.seconds_left is not None
            else "",
            "failed": "",
        }[stage.state]
        yield f"  {stage.stage:<20} {stage.state:<10} {said}".rstrip()
        if stage.shards is not None:
            yield f"  {'':<20} {stage.shards.line}"
    if run.state == "running":
        here = run.stage.seconds_left if run.stage else None
        yield (
            f"  left: stage {_duration(here)}, iteration {_duration(run.seconds_left)}, "
            f"run {_duration(run.run_seconds_left)}"
        )
    if run.loss is not None:
        yield f"  loss: {run.loss:.4f}"
    for role, cost in run.roles.items():
        yield (
            f"  {role:<20} {cost.texts} texts, {cost.scored} scored, {cost.prompt_tokens} tokens read, "
            f"{cost.completion_tokens} written, {cost.seconds:.1f} s"
        )
    for what, counts in (
        ("requests that failed or were repeated", run.faults), ("failed attempts", run.attempts), ("rows", run.rows),
    ):  # fmt: skip
        if counts:
            yield f"  {what}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    if run.failure is not None:
        at = f" at {run.failure.stage}" if run.failure.stage else ""
        yield f"  stopped{at}: {run.failure.reason}"
        yield from (f"  to go on: {command}" for command in run.failure.commands)


def _duration(seconds: float | None) -> str:
    """Seconds as people say them; None is not known."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def report(
    iteration: Annotated[int | None, typer.Argument(help="else the newest that has data", min=0)] = None,
    format: Annotated[Page, typer.Option(help="how the page is written")] = Page.text,
    run: RunOrLast = None,
    allow_missing: AllowMissing = False,
    data: Data = None,
) -> None:
    """Say what came of an iteration: success beside the baseline and the one before, what was distilled, and alarms."""
    from tasks.export.report import report_over
    from tasks.export.report_pages import markdown_page, terminal_page

    store = open_store(data)
    database = committed_data(store, allow_missing)
    if run is None:
        run = next((one.run for one in _chosen(store, None, [], [])), load(None).run)
    chosen = known_run(store, run)
    begun = "select distinct iteration from stages where run = $1 and state <> 'superseded' order by all"
    known = [number for (number,) in database.execute(begun, [chosen]).fetchall()]
    if iteration is None and not known:
        fail(f"run '{chosen}' has no committed stage yet; `nlac status` says what runs", USAGE)
    if iteration is not None and iteration not in known:
        fail(f"run '{chosen}' has no data of iteration {iteration} (there are: {known})", USAGE)
    found = report_over(database, chosen, known[-1] if iteration is None else iteration)
    if format is Page.json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
    elif format is Page.markdown:
        typer.echo(markdown_page(found), nl=False)
    else:
        say(terminal_page(found))
