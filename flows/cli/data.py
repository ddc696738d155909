"""The commands about committed data: verify, explain, import."""

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import (
    LOST,
    USAGE,
    AllowImport,
    AllowMissing,
    Data,
    ListAs,
    ListFormat,
    Run,
    fail,
    known_run,
    load,
    open_store,
    say,
    say_json,
)
from schemas.shown import counted


class LogFormat(StrEnum):
    """What a file of logged conversations holds."""

    openai_chat = "openai-chat"
    jsonl = "jsonl"
    parquet = "parquet"


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
            f"{store}: {counted(found.runs, 'run')}, {counted(found.iterations, 'iteration')}, "
            f"{counted(found.stages, 'stage')} and {found.superseded} superseded, {counted(found.files, 'file')}, "
            f"{found.bytes} bytes"
        )
        for fault in faults:
            say(fault.message, err=True)
    if any(not (fault.missing and allow_missing) for fault in faults):
        fail(f"{counted(len(faults), 'fault')} below {store}", LOST)
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
        say(f"{file.name}: in {where} already, nothing is added ({counted(done.episodes, 'episode')})")
        return
    new = f"{counted(done.episodes, 'episode')}, {counted(done.transitions, 'transition')}"
    say(f"{file.name}: {new} in {where}; that and every later one replays them")
    for kind, count in done.rejects.items():
        query = f"select record, error from rejects where run = '{run}'"
        say(f'rejected: {count} {kind}; nlac sql "{query}"')
