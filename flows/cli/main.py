"""The command `nlac`. What a command needs is imported when it runs, so `nlac --help` is quick."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.data_commands import register
from schemas.load import PROJECT_ROOT, ConfigError, data_root

app = typer.Typer(
    name="nlac", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Natural Language Actor-Critic as a pipeline of discrete, restartable stages.",
)  # fmt: skip
Data = Annotated[
    Path | None, typer.Option("--data", help="data root; default: NLAC_DATA, else data/ in the project")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="configuration; default: configs/default.yaml")
]


def say(text: str) -> None:
    """Print a line."""
    typer.echo(text)


def checked(config: Path | None, root: Path, run: str | None = None, seed: int | None = None) -> Path | None:
    """Check the configuration whole before anything is created; gives the file's absolute path.

    Raises:
        ConfigError: it can't be used.
    """
    from schemas.load import load_config
    from tasks.pipeline.checks import check_config

    changes = {name: value for name, value in (("run", run), ("seed", seed)) if value is not None}
    check_config(load_config(config, changes), root)
    if config is None:
        return None
    return config.resolve() if config.exists() else PROJECT_ROOT / config


@app.command()
def up(data: Data = None, config: ConfigFile = None) -> None:
    """Start the local stack: Prefect server, work pools, workers, deployments. It stays until `nlac down`."""
    from flows.stack import control as stacks
    from flows.stack.environment import stack_dir

    root = data_root(data)
    running = stacks.read_stack(root)
    if running is not None:
        say("The local stack is up already.")
    else:
        file = checked(config, root)
        say("Starting the local stack ...")
        running = stacks.up(root, file)
    home = stack_dir(root)
    say(f"Prefect API   {running.api_url}")
    say(f"Prefect UI    {running.ui_url}")
    say(f"PREFECT_HOME  {home / 'prefect'}")
    say(f"data root     {root}")
    say(f"logs          {home / 'logs'}")
    theirs = os.environ.get("PREFECT_API_URL")
    if theirs not in (None, running.api_url) or (
        theirs is None and running.api_url != stacks.default_api_url()
    ):
        say("\nFor plain `prefect` commands in this shell, first:")
        say(f"export PREFECT_API_URL={running.api_url}")
    else:
        say(f"\nPlain `prefect` commands work as they stand in {PROJECT_ROOT}, for instance:")
        say("prefect deployment run nlac/iteration")


@app.command()
def down(data: Data = None) -> None:
    """Stop what `nlac up` started, and nothing else."""
    from flows.stack import control as stacks

    say("The local stack is down." if stacks.down(data_root(data)) else "The local stack was not up.")


@app.command()
def iterate(
    data: Data = None,
    config: ConfigFile = None,
    run: Annotated[str | None, typer.Option(help="name of the run; default: the configuration's")] = None,
    iteration: Annotated[
        int | None, typer.Option(min=0, help="default: the unfinished one, else the next")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="compute again what is committed already")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="root of every random stream")] = None,
) -> None:
    """Run one iteration and show it; where `nlac up` was not run, with a stack of its own."""
    from flows.cli.iterate import Wish, run_and_show

    root = data_root(data)
    file = checked(config, root, run, seed)
    raise typer.Exit(run_and_show(root, Wish(file, run, iteration, force, seed)))


register(app)


def main() -> None:
    """Entry point: what the user can put right is one line on stderr; exit code 2 for a configuration."""
    from flows.stack.control import StackError
    from storage.store import StoreError
    from tasks.runtime.stage import StageFailed

    try:
        app()
    except ConfigError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    except (StackError, StoreError, StageFailed) as error:
        typer.echo(str(error), err=True)
        sys.exit(1)
