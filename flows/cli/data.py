"""The commands about committed data: sql, verify, explain, import."""

import os
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from flows.cli.options import (
    FAILED,
    LOST,
    USAGE,
    AllowImport,
    AllowMissing,
    Data,
    ListAs,
    ListFormat,
    Run,
    committed_data,
    fail,
    known_run,
    load,
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


class LogFormat(StrEnum):
    """What a file of logged conversations holds."""

    openai_chat = "openai-chat"
    jsonl = "jsonl"
    parquet = "parquet"


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


def verify(
    allow_missing: AllowMissing = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="first rebuild each lost current.json from the manifests")
    ] = False,
    format: ListAs = ListFormat.table,
    data: Data = None,
) -> None:
    """Check every committed file against its manifest by sha256, count them, and name what nothing refers to."""
    from storage import verify as stored

    store = open_store(data)
    repaired = stored.repair(store) if repair else []
    found, faults = stored.survey(store), stored.verify(store)
    if format is ListFormat.json:
        say_json({**asdict(found), "repaired": repaired, "faults": [asdict(fault) for fault in faults]})
    else:
        for line in (*repaired, *(f"nothing refers to {path}" for path in found.unreferenced)):
            say(line)
        say(
            f"{store}: {found.runs} runs, {found.iterations} iterations, {found.stages} stages and "
            f"{found.superseded} superseded, {found.files} files, {found.bytes} bytes"
        )
        for fault in faults:
            say(fault.message, err=True)
    if any(not (fault.missing and allow_missing) for fault in faults):
        fail(f"{len(faults)} faults below {store}", LOST)
    if format is ListFormat.table:
        typer.echo(
            "what is there is as it was committed" if faults else "all files are as they were committed"
        )


def explain(
    stage: Annotated[str, typer.Argument(help="a stage, for instance critic-sft")],
    iteration: Annotated[int, typer.Argument(help="its iteration", min=0)],
    config: Annotated[
        Path | None, typer.Option(help="compare with this configuration, not the iteration's own")
    ] = None,
    run: Run = None,
    format: ListAs = ListFormat.table,
    data: Data = None,
    allow_import: AllowImport = None,
) -> None:
    """Say why a stage would be reused or recomputed: the input, prompt or config field that changed."""
    from tasks.pipeline.decision import decide
    from tasks.pipeline.iterations import frozen_config, settle
    from tasks.pipeline.registry import STAGES
    from tasks.pipeline.shards import shards_of

    if stage not in STAGES:
        fail(f"'{stage}' is no stage; the stages are {', '.join(STAGES)}", USAGE)
    store = open_store(data)
    chosen = load(config, run and known_run(store, run))
    if config is None:
        chosen = frozen_config(store, chosen.run, iteration) or chosen
    chosen = settle(store, chosen, iteration)
    decision = decide(store, chosen, stage, iteration, frozen=config is None)
    shards = None if decision.reuse else shards_of(store, chosen, decision)
    if shards is not None:
        there = f"{len(shards.all) - len(shards.missing())} of {len(shards.all)} shards are committed"
        decision = replace(decision, reasons=(*decision.reasons, there))
    if format is ListFormat.json:
        named = {
            "run": chosen.run,
            "stage": stage,
            "iteration": iteration,
            "fingerprint": decision.fingerprint,
        }
        say_json({**named, "reuse": decision.reuse, "reasons": decision.reasons})
        return
    verdict = "reuse" if decision.reuse else "recompute"
    say(f"{stage} of iteration {iteration}, run '{chosen.run}': {verdict} ({decision.fingerprint})")
    for reason in decision.reasons:
        say(f"  {reason}")


def import_log(
    file: Annotated[Path, typer.Argument(help="logged conversations with rewards")],
    format: Annotated[
        LogFormat | None,
        typer.Option(
            help="openai-chat: a JSON array of records; jsonl: one record per line; parquet: one record per row; "
            "default: by the file's name, else openai-chat"
        ),
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON list of tool schemas, for records without")
    ] = None,
    run: Annotated[str, typer.Option(help="run to import into; a new or imported one")] = "logged",
    data: Data = None,
) -> None:
    """Import logged conversations as episodes and transitions to train on (rollout: none). The same file twice adds
    nothing."""
    from tasks.logs import importing

    load(None, run)  # refuses a bad name
    by_suffix = {f".{known.value}": known for known in (LogFormat.jsonl, LogFormat.parquet)}
    chosen = format or by_suffix.get(file.suffix, LogFormat.openai_chat)
    schemas = importing.load_tools(tools) if tools else None
    done = importing.import_log(
        open_store(data), run, file, chosen.value, tools=schemas,
        report=lambda records: say(f"{records} records", err=True),
    )  # fmt: skip
    where = f"run '{run}', iteration {done.committed.manifest.iteration}"
    if done.known:
        say(f"{file.name}: in {where} already, nothing is added ({done.episodes} episodes)")
        return
    say(
        f"{file.name}: {done.episodes} episodes, {done.transitions} transitions in {where}; that and every later one "
        "replays them"
    )
    for kind, count in done.rejects.items():
        query = f"select record, error from rejects where run = '{run}'"
        say(f'rejected: {count} {kind}; nlac sql "{query}"')
