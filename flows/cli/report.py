"""`nlac report`: what came of an iteration."""

import dataclasses
import json
from enum import StrEnum
from typing import Annotated

import typer

from flows.cli.options import (
    USAGE,
    AllowMissing,
    Data,
    committed_data,
    fail,
    known_run,
    load,
    open_store,
    say,
)
from flows.cli.status import RunOrLast, chosen_runs


class Page(StrEnum):
    """How a report is written."""

    text = "text"
    markdown = "markdown"
    json = "json"


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
        run = next((one.run for one in chosen_runs(store, None, [], [])), load(None).run)
    chosen = known_run(store, run)
    begun = "select distinct iteration from stages where run = $1 and state <> 'superseded' order by all"
    known = [number for (number,) in database.execute(begun, [chosen]).fetchall()]
    if iteration is None and not known:
        fail(f"run '{chosen}' has no committed stage yet; `nlac status` says what runs", USAGE)
    if iteration is not None and iteration not in known:
        fail(
            f"run '{chosen}' has no data of iteration {iteration} (there are: {', '.join(map(str, known))})",
            USAGE,
        )
    found = report_over(database, chosen, known[-1] if iteration is None else iteration)
    if format is Page.json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
    elif format is Page.markdown:
        typer.echo(markdown_page(found), nl=False)
    else:
        say(terminal_page(found))
