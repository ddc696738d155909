"""`nlac config`: check a configuration, or show it with every default."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import AllowImport, Data, load, open_store

app = typer.Typer(no_args_is_help=True, help="Check or show a configuration.")
File = Annotated[Path | None, typer.Argument(help="configuration; else configs/default.yaml")]


@app.command()
def check(
    file: File = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="for another machine: models, vLLM, a GPU and API keys need not be on this one",
        ),
    ] = False,
    data: Data = None,
    allow_import: AllowImport = None,
) -> None:
    """Check a configuration whole, and print what an iteration would do. Creates nothing below the data root,
    and imports nothing from outside this program that is not allowed."""
    from tasks.pipeline.checks import check_config
    from tasks.pipeline.iterations import dtype_choice, next_iteration
    from tasks.pipeline.plan import plan

    config, store = load(file), open_store(data)
    check_config(config, store.root, elsewhere=elsewhere)
    rows = [("stage", "pool", "requests", "tokens", "")]
    rows += [
        (r.stage, r.pool, f"{r.bound.requests:,}", f"{r.bound.tokens:,}", r.bound.note) for r in plan(config)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for stage, pool, requests, tokens, note in rows:
        left = f"{stage:<{widths[0]}}  {pool:<{widths[1]}}"
        typer.echo(f"{left}  {requests:>{widths[2]}}  {tokens:>{widths[3]}}  {note}".rstrip())
    if elsewhere:
        typer.echo(
            "\nNot checked: models, vLLM, GPU, API keys and the data root of the machine that it is for."
        )
    else:
        choice = dtype_choice(store, config, next_iteration(store, config.run))
        typer.echo(f"\nmodel.dtype: {choice.dtype}, {choice.reason}")
    typer.echo("\nThe configuration can be used. Requests and tokens are upper bounds of one iteration.")


@app.command()
def show(file: File = None) -> None:
    """Print the resolved configuration, every field with its value, as a file that can be run; passwords as ***."""
    from schemas.load import dump_config

    typer.echo(dump_config(load(file), masked=True), nl=False)
