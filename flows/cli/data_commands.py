"""The commands of `nlac` about data: import, sql, verify, explain, config, export, play, demonstrate, mlflow-ui.

Everything heavy is imported inside the commands, so that `nlac --help` answers at once.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.environment_commands import register_environments
from flows.cli.import_command import import_command
from flows.cli.options import FAILED, USAGE, Data, Run, fail, load, open_store, usable_config
from flows.cli.policy_commands import export_policy, play
from flows.cli.row_commands import export_critic_sft, export_policy_distillation


class Format(StrEnum):
    """How a query's result is written."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def register(app: typer.Typer) -> None:
    """Add the commands to `nlac`."""
    configuration = typer.Typer(no_args_is_help=True, help="Check or show a configuration.")
    configuration.command("check")(check)
    configuration.command("show")(show)
    exports = typer.Typer(
        no_args_is_help=True, help="Write what was trained, or trained on, for use outside."
    )
    exports.command("policy")(export_policy)
    exports.command("critic-sft")(export_critic_sft)
    exports.command("policy-distillation")(export_policy_distillation)
    app.command("import")(import_command)
    app.command("sql")(sql)
    app.command("verify")(verify)
    app.command("explain")(explain)
    app.add_typer(configuration, name="config")
    app.add_typer(exports, name="export")
    app.command("play")(play)
    app.command("demonstrate")(demonstrate)
    app.command("mlflow-ui")(mlflow_ui)
    register_environments(app)


def demonstrate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Parquet file to write; must not be there yet")
    ],
    rows: Annotated[int, typer.Option(min=1, help="demonstrations of each of the five roles")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="of the games and the guesses")] = 0,
) -> None:
    """Write demonstrations for a warm start: GuessTheNumber, told from random play."""
    from tasks.environments.guess_number import demonstrations

    if file.exists():
        fail(f"{file}: is there already, and nothing is overwritten; give another name, or remove it", USAGE)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        demonstrations(rows, seed).write_parquet(file)
    except OSError as error:
        fail(f"{file}: can't be written ({error.strerror})", FAILED)
    typer.echo(f"{file}: {rows} demonstrations each of policy, predict, bootstrap, evaluate and refine")


def sql(
    query: Annotated[str | None, typer.Argument(help="DuckDB SQL; leave it out to list the tables")] = None,
    format: Annotated[Format, typer.Option(help="how the result is written")] = Format.table,
    output: Annotated[Path | None, typer.Option(help="file to write to instead of the terminal")] = None,
    data: Data = None,
) -> None:
    """Query all committed data; alone, list tables and columns with their meanings."""
    if query is None:
        _list_tables()
        return
    if format is Format.parquet and output is None and sys.stdout.isatty():
        fail("--format parquet writes bytes: give --output FILE, or pipe them into a program", USAGE)
    import duckdb

    from storage.sql.render import render
    from storage.sql.views import connect

    problems: list[str] = []
    database = connect(open_store(data), problems)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    try:
        relation = database.sql(query)
        if relation is None:
            fail("the query is empty; `nlac sql` alone lists the tables", USAGE)
        if output is None:
            width = typer.get_terminal_size()[0] if sys.stdout.isatty() else 10_000
            render(relation, format.value, sys.stdout.buffer, width)
        else:
            with output.open("wb") as stream:
                render(relation, format.value, stream)
    except duckdb.Error as error:
        fail(_one_line(error), USAGE)
    except BrokenPipeError:
        # The reader has enough (`| head`); what is still buffered goes nowhere when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"{output or 'output'}: {error.strerror}", FAILED)


def _list_tables() -> None:
    from schemas.rows import Generation
    from storage.sql.catalog import relations

    for relation in relations():
        typer.echo(f"{relation.name}: {relation.meaning}")
        names = max(len(column.name) for column in relation.columns)
        types = min(24, max(len(column.type) for column in relation.columns))
        for column in relation.columns:
            typer.echo(f"    {column.name:<{names}}  {column.type:<{types}}  {column.meaning}")
        typer.echo()
    typer.echo("superseded.<table>: the same tables of folders that were replaced, with a column `folder`.")
    typer.echo(f"GENERATION is a struct of {', '.join(Generation.model_fields)}: generation.model_version")


def _one_line(error: Exception) -> str:
    # DuckDB ends with the query and a pointer into it; what comes before says what is wrong and what is near.
    said = " ".join(str(error).partition("\nLINE ")[0].split())
    damaged = any(word in type(error).__name__ for word in ("IO", "Invalid", "Serialization", "Internal"))
    return f"{said} (`nlac verify` finds damaged files)" if damaged else said


def verify(data: Data = None) -> None:
    """Check every current file against its manifest by sha256."""
    from storage.verify import verify as faults_of

    store = open_store(data)
    faults = faults_of(store)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        fail(f"{len(faults)} broken of what is current below {store.root}", FAILED)
    typer.echo(f"all current files below {store.root} are as they were committed")


def explain(
    stage: Annotated[str, typer.Argument(help="a stage, for instance critic-sft")],
    iteration: Annotated[int, typer.Argument(help="its iteration", min=0)],
    config: Annotated[
        Path | None, typer.Option(help="compare with this configuration, not the iteration's own")
    ] = None,
    run: Run = None,
    data: Data = None,
) -> None:
    """Say why a stage would be reused or recomputed: the input, prompt or config field that changed."""
    from storage.store import StoreError
    from tasks.pipeline.decision import decide
    from tasks.pipeline.iterations import frozen_config
    from tasks.pipeline.registry import STAGES
    from tasks.runtime.stage import StageFailed

    if stage not in STAGES:
        fail(f"'{stage}' is no stage; the stages are {', '.join(STAGES)}", USAGE)
    store = open_store(data)
    with usable_config():
        chosen = load(config, run)
        if config is None:
            chosen = frozen_config(store, chosen.run, iteration) or chosen
    try:
        decision = decide(store, chosen, stage, iteration, frozen=config is None)
    except (StageFailed, StoreError) as error:
        fail(str(error), FAILED)
    verdict = "reuse" if decision.reuse else "recompute"
    typer.echo(f"{stage} of iteration {iteration}, run '{chosen.run}': {verdict} ({decision.fingerprint})")
    for reason in decision.reasons:
        typer.echo(f"  {reason}")


def check(
    file: Annotated[Path | None, typer.Argument(help="configuration; else configs/default.yaml")] = None,
    data: Data = None,
) -> None:
    """Check a configuration whole, and print what an iteration would do. Creates nothing."""
    from tasks.pipeline.checks import check_config
    from tasks.pipeline.plan import plan

    with usable_config():
        config = load(file)
        check_config(config, open_store(data).root)
    rows = [("stage", "pool", "requests", "tokens", "")]
    rows += [
        (r.stage, r.pool, f"{r.bound.requests:,}", f"{r.bound.tokens:,}", r.bound.note) for r in plan(config)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for stage, pool, requests, tokens, note in rows:
        left = f"{stage:<{widths[0]}}  {pool:<{widths[1]}}"
        typer.echo(f"{left}  {requests:>{widths[2]}}  {tokens:>{widths[3]}}  {note}".rstrip())
    typer.echo("\nThe configuration can be used. Requests and tokens are upper bounds of one iteration.")


def show(
    file: Annotated[Path | None, typer.Argument(help="configuration; else configs/default.yaml")] = None,
) -> None:
    """Print the resolved configuration, every field with its value, as a file that can be run."""
    from schemas.load import dump_config

    with usable_config():
        typer.echo(dump_config(load(file)), nl=False)


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
