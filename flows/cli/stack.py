"""The commands that start and stop servers, and `nlac iterate`, which runs an iteration on them."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, AllowImport, ConfigFile, Data, fail, load, open_store
from schemas.load import PROJECT_ROOT, data_root, find_file


def up(data: Data = None, config: ConfigFile = None, allow_import: AllowImport = None) -> None:
    """Start the local stack: Prefect server, work pools, workers, deployments. It stays until `nlac down`."""
    from flows.stack import control
    from flows.stack.environment import stack_dir
    from tasks.pipeline.checks import check_config

    root = data_root(data)
    running = control.read_stack(root)
    if running is not None:
        control.keep_up(root)
        typer.echo("The local stack is up already.")
    else:
        check_config(load(config), root)
        typer.echo("Starting the local stack ...")
        running = control.up(root, _absolute(config))
    home = stack_dir(root)
    typer.echo(f"Prefect API   {running.api_url}")
    typer.echo(f"Prefect UI    {running.ui_url}")
    typer.echo(f"PREFECT_HOME  {home / 'prefect'}")
    typer.echo(f"data root     {root}")
    typer.echo(f"logs          {home / 'logs'}")
    if os.environ.get("PREFECT_API_URL", control.default_api_url()) != running.api_url:
        typer.echo("\nFor plain `prefect` commands in this shell, first:")
        typer.echo(f"export PREFECT_API_URL={running.api_url}")
    else:
        typer.echo(f"\nPlain `prefect` commands work as they stand in {PROJECT_ROOT}, for instance:")
        typer.echo("prefect deployment run nlac/iteration")


def down(data: Data = None) -> None:
    """Stop what `nlac up` started, and nothing else."""
    from flows.stack import control

    stopped = control.down(data_root(data))
    typer.echo("The local stack is down." if stopped else "The local stack was not up.")


def iterate(
    data: Data = None,
    config: ConfigFile = None,
    run: Annotated[str | None, typer.Option(help="name of the run; default: the configuration's")] = None,
    iteration: Annotated[
        int | None, typer.Option(min=0, help="default: the unfinished one, else the next")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="compute again what is committed already")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="root of every random stream")] = None,
    allow_import: AllowImport = None,
) -> None:
    """Run one iteration and show it. Without `nlac up`, it starts a stack of its own and stops it."""
    from flows.cli.iterate import Request, run_and_show

    request = Request(_absolute(config), run, iteration, force, seed)
    raise typer.Exit(run_and_show(data_root(data), request))


def mlflow_ui(
    port: Annotated[
        int | None, typer.Option(help="else 4218, or a free one where that is taken", min=1, max=65535)
    ] = None,
    data: Data = None,
) -> None:
    """Show the data root's MLflow store in a browser, until Ctrl-C."""
    from storage.mlflow.server import USUAL_PORT, server_command
    from tasks.ports import free_port

    root = open_store(data).root
    if not (root / ".mlflow" / "mlflow.db").exists():
        fail(f"{root}: nothing is logged in MLflow yet; run an iteration first: make iteration", FAILED)
    port = free_port(USUAL_PORT) if port is None else port
    command, environment = server_command(root, port)
    typer.echo(f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C stops it)")
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def _absolute(config: Path | None) -> Path | None:
    return find_file(config).resolve() if config else None
