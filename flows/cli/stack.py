"""The commands that start and stop servers, and `nlac iterate`, which runs an iteration on them."""

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, USAGE, AllowImport, ConfigFile, Data, fail, load, open_store
from schemas.load import PROJECT_ROOT, data_root, find_file


class Role(StrEnum):
    """A work pool, by what its stages do."""

    orchestration = "orchestration"
    inference = "inference"
    training = "training"


Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="listen for other hosts, on this IPv4 address; else for this one alone"
    ),
]


def up(
    data: Data = None,
    config: ConfigFile = None,
    listen: Listen = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="start workers alone, for the Prefect server of another host; NLAC_STACK_SECRET has its secret",
        ),
    ] = None,
    serve: Annotated[
        list[Role] | None,
        typer.Option(
            metavar="|".join(Role),
            help="pool that this host's workers serve; repeatable; else all, with --join inference and training",
        ),
    ] = None,
    allow_import: AllowImport = None,
) -> None:
    """Start the local stack: Prefect server, work pools, workers, deployments. It stays until `nlac down`."""
    from flows.stack import control
    from flows.stack.environment import profiles_path, stack_dir
    from flows.stack.hosts import JOINED_ROLES, LOOPBACK, ROLES, Share, worker_name
    from flows.stack.joining import api_address, own_address
    from flows.stack.record import read_stack
    from tasks.pipeline.checks import check_config

    root = data_root(data)
    if join and listen:
        fail("--listen and --join: a host has the server, or joins another's; give one of the two", USAGE)
    roles = tuple(map(str, serve)) if serve else JOINED_ROLES if join else ROLES
    share = Share(own_address(listen) if listen else LOOPBACK, api_address(join) if join else None, roles)
    running = read_stack(root)
    if running is not None:
        control.keep_up(root)
        running = control.whole_stack(root)
        typer.echo("The local stack is up already.")
        if (listen or join) and (running.listen, running.join) != (share.listen, share.join):
            fail(f"It is at {running.api_url}, not as asked for; first: nlac down", FAILED)
    else:
        check_config(load(config), root)
        typer.echo("Starting the local stack ...")
        running = control.up(root, _absolute(config), share=share)
    home = stack_dir(root)
    typer.echo(f"Prefect API   {running.api_url}")
    typer.echo(f"Prefect UI    {running.ui_url}")
    typer.echo(f"secret        {profiles_path(root)}  (the page asks for its PREFECT_API_AUTH_STRING)")
    typer.echo(f"PREFECT_HOME  {home / 'prefect'}")
    typer.echo(f"data root     {root}")
    typer.echo(f"logs          {home / 'logs'}")
    if not share.is_alone:
        typer.echo(f"workers       {', '.join(map(worker_name, share.roles))}")
    if share.listen != LOOPBACK:
        typer.echo("\nOther hosts join with the secret in NLAC_STACK_SECRET (docs/hosts.md):")
        typer.echo(f"nlac up --join {running.ui_url}")
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
    """Run one iteration and show it. Without `nlac up`, it starts a Prefect server, computes all stages in one process,
    and stops the server."""
    from flows.cli.iterate import Request, run_and_show

    request = Request(_absolute(config), run, iteration, force, seed)
    raise typer.Exit(run_and_show(data_root(data), request))


def join_training(config: ConfigFile = None, data: Data = None) -> None:
    """Lend this host's GPUs to the training stages of another host, one after the other, until Ctrl-C."""
    from storage.store import Store
    from tasks.training.join import join_trainings

    for line in join_trainings(load(config).trainer, Store(data_root(data)).cache_dir):
        typer.echo(line)


def mlflow_ui(
    port: Annotated[
        int | None, typer.Option(help="else 4218, or a free one where that is taken", min=1, max=65535)
    ] = None,
    data: Data = None,
    listen: Listen = None,
) -> None:
    """Show the data root's MLflow store in a browser, until Ctrl-C."""
    from flows.stack.environment import profiles_path
    from flows.stack.hosts import LOOPBACK
    from flows.stack.joining import own_address
    from flows.stack.private import stack_secret
    from storage.databases import MLFLOW, check_databases
    from storage.mlflow.backend import Backend
    from storage.mlflow.server import USUAL_PORT, server_command
    from tasks.ports import free_port

    root, backend = open_store(data).root, Backend(open_store(data).root)
    address = own_address(listen) if listen else LOOPBACK
    check_databases(MLFLOW)
    if not backend.exists:
        fail(f"{root}: nothing is logged in MLflow yet; run an iteration first: make iteration", FAILED)
    port = free_port(USUAL_PORT, address) if port is None else port
    command, environment = server_command(root, port, stack_secret(root), address)
    typer.echo(f"MLflow UI: http://{address}:{port}  (Ctrl-C stops it)")
    typer.echo(f"It asks for the user and password (user:password) in {profiles_path(root)}")
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def _absolute(config: Path | None) -> Path | None:
    return find_file(config).resolve() if config else None
