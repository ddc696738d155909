"""`nlac sql`: any query over all committed data, and how its result is written."""

import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from flows.cli.options import (
    FAILED,
    USAGE,
    AllowMissing,
    Data,
    committed_data,
    fail,
    open_store,
    say,
    say_json,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


class Format(StrEnum):
    """How a query's result is written."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    vertical = "vertical"


def sql(
    query: Annotated[str | None, typer.Argument(help="DuckDB SQL; leave it out to list the tables")] = None,
    format: Annotated[Format, typer.Option(help="how the result is written")] = Format.table,
    output: Annotated[Path | None, typer.Option(help="file to write to instead of the terminal")] = None,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe", help="any SQL, which may read and write any file; else one SELECT or EXPLAIN"
        ),
    ] = False,
    allow_missing: AllowMissing = False,
    data: Data = None,
) -> None:
    """Query all committed data; alone, list tables and columns with their meanings."""
    if query is None:
        _list_tables(format)
        return
    if format is Format.parquet and output is None and sys.stdout.isatty():
        fail("--format parquet writes bytes: give --output FILE, or pipe them into a program", USAGE)
    import duckdb

    from storage.sql.queries import QueryRefused, ask
    from storage.sql.render import render

    database = committed_data(open_store(data), allow_missing, unsafe=unsafe)
    try:
        relation = database.sql(query) if unsafe else ask(database, query)
        if relation is None:
            typer.echo("done, without rows", err=True)
            return
        if output is None:
            write_result(relation, format, sys.stdout.buffer)
        else:
            with output.open("wb") as stream:
                render(relation, format.value, stream)
    except QueryRefused as refused:
        fail(str(refused), USAGE)
    except duckdb.PermissionException as error:
        fail(f"{_one_line(error)}; --unsafe lifts that", USAGE)
    except duckdb.Error as error:
        fail(_one_line(error), USAGE)
    except BrokenPipeError:
        # The reader has enough (`| head`). What is still buffered goes nowhere when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"{output or 'output'}: {error.strerror}", FAILED)


def write_result(relation: "DuckDBPyRelation", format: Format, stream: BinaryIO) -> None:
    """Write a query's result; a drawn table is as wide as the terminal, where there is one."""
    from storage.sql.render import render

    terminal = sys.stdout.isatty()
    width = typer.get_terminal_size()[0] if terminal else 10_000
    render(relation, format.value, stream, width, terminal=terminal)


def _list_tables(format: Format) -> None:
    from schemas.rows import Generation
    from storage.sql.catalog import relations

    if format is Format.json:
        say_json([asdict(relation) for relation in relations()])
        return
    for relation in relations():
        say(f"{relation.name}: {relation.meaning}")
        names = max(len(column.name) for column in relation.columns)
        types = min(24, max(len(column.type) for column in relation.columns))
        for column in relation.columns:
            say(f"    {column.name:<{names}}  {column.type:<{types}}  {column.meaning}")
        typer.echo()
    typer.echo("superseded.<table>: the same tables of folders that were replaced, with a column `folder`.")
    say(f"GENERATION is a struct of {', '.join(Generation.model_fields)}: generation.model_version")


def _one_line(error: Exception) -> str:
    # DuckDB's message ends with the query and a pointer into it; the part before says what is wrong and where.
    said = " ".join(str(error).partition("\nLINE ")[0].split())
    damaged = any(word in type(error).__name__ for word in ("IO", "Invalid", "Serialization", "Internal"))
    return f"{said} (`nlac verify` finds damaged files)" if damaged else said
