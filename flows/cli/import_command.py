"""The command `nlac import`: logged conversations into a run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, Data, fail, load, open_store, usable_config

LOGGED = "logged"


class LogFormat(StrEnum):
    """What a file of logged conversations holds."""

    openai_chat = "openai-chat"
    jsonl = "jsonl"
    parquet = "parquet"


def import_command(
    file: Annotated[Path, typer.Argument(help="logged conversations with rewards")],
    format: Annotated[
        LogFormat | None,
        typer.Option(
            help="openai-chat: a JSON array of records; jsonl: one record a line; parquet: one record a row; "
            "default: by the file's name, else openai-chat"
        ),
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON list of tool schemas, for records without")
    ] = None,
    run: Annotated[str, typer.Option(help="run to import into; a new or imported one")] = LOGGED,
    data: Data = None,
) -> None:
    """Import logged conversations as episodes and transitions to train on (rollout: none). The same file twice adds
    nothing."""
    from storage.store import RunLocked
    from tasks.logs.importing import import_log, load_tools
    from tasks.logs.records import UnreadableLog
    from tasks.runtime.stage import StageFailed

    with usable_config():
        load(None, run)  # the run's name
    known = {f".{name.value}": name for name in (LogFormat.jsonl, LogFormat.parquet)}
    how = format or known.get(file.suffix, LogFormat.openai_chat)
    try:
        schemas = load_tools(tools) if tools else None
        done = import_log(open_store(data), run, file, how.value, tools=schemas, report=_progress)
    except (UnreadableLog, RunLocked, StageFailed) as error:
        fail(str(error), FAILED)
    where = f"run '{run}', iteration {done.committed.manifest.iteration}"
    if done.known:
        typer.echo(f"{file.name}: in {where} already, nothing is added ({done.episodes} episodes)")
        return
    typer.echo(
        f"{file.name}: {done.episodes} episodes, {done.transitions} transitions in {where}; that and every later one "
        "replays them"
    )
    for kind, count in done.rejects.items():
        typer.echo(
            f"rejected: {count} {kind}; nlac sql \"select record, error from rejects where run = '{run}'\""
        )


def _progress(records: int) -> None:
    typer.echo(f"{records} records", err=True)
