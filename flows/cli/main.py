"""The command `nlac`. A command imports what it needs when it runs, so `nlac --help` is quick."""

import os
from collections.abc import Callable

import typer

from flows.cli import ceiling, configuration, data, doctor, environments, exports, runs, show, stack
from flows.cli.options import Commands

COMMANDS: dict[str, Callable[..., None]] = {
    "up": stack.up,
    "down": stack.down,
    "iterate": stack.iterate,
    "import": data.import_log,
    "sql": data.sql,
    "verify": data.verify,
    "gc": runs.gc,
    "doctor": doctor.doctor,
    "explain": data.explain,
    "show": show.show,
    "play": exports.play,
    "demonstrate": exports.demonstrate,
    "ceiling": ceiling.ceiling,
    "mlflow-ui": stack.mlflow_ui,
}

app = typer.Typer(
    name="nlac", cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Natural Language Actor-Critic as a pipeline of discrete, restartable stages.",
)  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(configuration.app, name="config")
app.add_typer(exports.app, name="export")
app.add_typer(environments.app, name="env")
app.add_typer(runs.app, name="runs")


def main() -> None:
    """The entry point of `nlac`."""
    # Read when torch is loaded. Beside other processes, threads that wait by spinning make a small model's token take
    # up to twenty times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()
