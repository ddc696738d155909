"""`nlac view`: runs, episodes and the texts behind them as one HTML file for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import (
    FAILED,
    USAGE,
    AllowMissing,
    Data,
    fail,
    known_run,
    open_store,
    refuse_missing,
    say,
)


def view(
    output: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write")] = Path("view.html"),
    run: Annotated[
        list[str] | None, typer.Option(help="a run to show; repeatable; without, all of them")
    ] = None,
    megabytes: Annotated[
        float, typer.Option(min=0.5, help="largest size of the page; episodes that don't fit are left out")
    ] = 5.0,
    allow_missing: AllowMissing = False,
    data: Data = None,
) -> None:
    """Write runs, episodes and the texts behind them as one HTML file, which opens without a network."""
    from schemas.shown import counted
    from storage.files import replace_text
    from tasks.export.view.page import NothingToView, make_page

    store = open_store(data)
    runs = [known_run(store, name) for name in dict.fromkeys(run)] if run else store.runs()
    if not runs:
        fail(
            f"no run under {store}; begin one with `nlac iterate`, or name the data root with --data",
            USAGE,
        )
    problems: list[str] = []
    try:
        page = make_page(store, runs, int(megabytes * 1e6), problems)
    except NothingToView as error:
        fail(str(error), USAGE)
    refuse_missing(problems, allow_missing)
    try:
        replace_text(output.absolute(), page.html)
    except OSError as error:
        fail(f"{output}: {error.strerror}; choose another file with --output", FAILED)
    shown = f"{page.shown} of {counted(page.episodes, 'episode')} of {counted(len(runs), 'run')}"
    say(f"{output}: {shown}, {len(page.html.encode()) / 1e6:.1f} MB; open it in a browser")
