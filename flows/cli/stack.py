"""The commands that start and stop servers, and `nlac iterate`, which runs an iteration on them."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, AllowImport, ConfigFile, Data, fail, load, open_store
from schemas.load import PROJECT_ROOT, data_root, find_file


def up(data: Data = None, config: ConfigFile = None, allow_import: AllowImport = None) -> None:
    """Start the local stack: Prefect server, work pools, workers, deployments. It stays until `nlac down`."""
    from flows.stack import control
    from flows.stack.environment import profiles_path, stack_dir
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
    typer.echo(f"secret        {profiles_path(root)}  (the page asks for its PREFECT_API_AUTH_STRING)")
    typer.echo(f"PREFECT_HOME  {home / 'prefect'}")
    typer.echo(f"data root     {root}")
    typer.echo(f"logs          {home / 'logs'}")
    lacking = control.lacking_settings(running)
    if lacking:
        typer.echo("\nFor plain `prefect` commands in this shell, first:")
        typer.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in lacking.items()))
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
    from flows.stack.environment import profiles_path
    from flows.stack.private import stack_secret
    from storage.mlflow.server import DATABASE, USUAL_PORT, server_command
    from tasks.ports import free_port

    root = open_store(data).root
    if not (root / ".mlflow" / DATABASE).exists():
        fail(f"{root}: nothing is logged in MLflow yet; run an iteration first: make iteration", FAILED)
    port = free_port(USUAL_PORT) if port is None else port
    command, environment = server_command(root, port, stack_secret(root))
    typer.echo(f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C stops it)")
    typer.echo(f"It asks for the user and password (user:password) in {profiles_path(root)}")
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def _absolute(config: Path | None) -> Path | None:
    return find_file(config).resolve() if config else None
