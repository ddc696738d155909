"""The command `nlac`. A command imports what it needs when it runs, so `nlac --help` is quick."""

import os
from collections.abc import Callable

import typer

from flows.cli import (
    ceiling,
    configuration,
    data,
    doctor,
    environments,
    exports,
    report,
    runs,
    show,
    sql,
    stack,
    status,
    view,
)
from flows.cli.examples import epilog, exit_codes
from flows.cli.options import Commands
from tasks.thread_waits import short_waits

COMMANDS: dict[str, Callable[..., None]] = {
    "up": stack.up,
    "down": stack.down,
    "join-training": stack.join_training,
    "iterate": stack.iterate,
    "status": status.status,
    "report": report.report,
    "import": data.import_log,
    "sql": sql.sql,
    "verify": data.verify,
    "gc": runs.gc,
    "doctor": doctor.doctor,
    "explain": data.explain,
    "show": show.show,
    "view": view.view,
    "play": exports.play,
    "demonstrate": exports.demonstrate,
    "ceiling": ceiling.ceiling,
    "mlflow-ui": stack.mlflow_ui,
}
GROUPS: dict[str, typer.Typer] = {
    "config": configuration.app,
    "export": exports.app,
    "env": environments.app,
    "runs": runs.app,
}

app = typer.Typer(
    name="nlac", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, epilog=exit_codes(),
    help="Natural Language Actor-Critic as a pipeline of discrete, restartable stages.",
)  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name, epilog=epilog(name))(command)
for name, group in GROUPS.items():
    for one in group.registered_commands:
        one.epilog = epilog(f"{name} {one.name or getattr(one.callback, '__name__', '')}")
    app.add_typer(group, name=name)


def main() -> None:
    """The entry point of `nlac`."""
    os.environ.update(short_waits())
    app()
