"""`nlac show`: the texts behind one id with the prompts that their roles read, or a list of ids to look at."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from flows.cli.options import (
    USAGE,
    AllowMissing,
    Data,
    committed_data,
    complete_run,
    fail,
    known_run,
    open_store,
    say,
    say_json,
)
from flows.cli.sql import Format, write_result
from schemas.shown import visible

_WRITTEN = (
    "episodes",
    "transitions",
    "bellman_targets",
    "corrected_targets",
    "critiques",
    "futures",
    "refinements",
    "sampled_actions",
    "td_targets",
    "action_values",
    "training_rows",
)
_IDS = {
    "corrected_targets": "target_id", "bellman_targets": "target_id", "td_targets": "target_id",
    "sampled_actions": "action_id", "action_values": "action_id", "training_rows": "source_id",
}  # fmt: skip

LISTS: Mapping[str, str] = {
    "failed": " union all ".join(
        f"select '{table}' as \"table\", {_IDS.get(table, table[:-1] + '_id')} as id, run, iteration, status, error "
        f"from {table} where status <> 'ok'"
        for table in _WRITTEN
    ),
    "leaked": "select 'bellman_targets' as \"table\", target_id as id, run, iteration, verdict, leak_before, "
    "leak_after, thought_before, thought from corrected_targets where leak_before > 0 union all "
    "select 'refinements', refinement_id, run, iteration, verdict, leak_before, leak_after, thought_before, thought "
    "from refinements where leak_before > 0",
    "invalid": "select 'transitions' as \"table\", transition_id as id, run, iteration, raw_action as text, error "
    "from transitions where not action_valid union all "
    "select 'refinements', refinement_id, run, iteration, action_text, error from refinements where not valid",
    "changed": "select refinement_id as id, run, iteration, observation, judged_action, critique, refined_action "
    "from lineage where changed",
}
"""List -> its query. The column id is what `nlac show ID` takes; of a demonstration that was not trained on there is no
more to show."""


def show(
    row_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="of an episode, transition, replay sample, target, critique, future, refinement or sampled action",
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="list rows whose status is not ok")] = False,
    leaked: Annotated[
        bool, typer.Option("--leaked", help="list thoughts that leaked before correction")
    ] = False,
    invalid: Annotated[bool, typer.Option("--invalid", help="list actions that are not valid")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="list distilled actions that differ")] = False,
    run: Annotated[
        str | None, typer.Option(help="of a list: only this run", autocompletion=complete_run)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="of a list: at most so many rows")] = 20,
    format: Annotated[
        Format, typer.Option(help="of a list: as for nlac sql; of an ID: json, else text")
    ] = Format.table,
    allow_missing: AllowMissing = False,
    data: Data = None,
) -> None:
    """Show the texts behind an id in order, with the prompt that each role read; or list ids to look at."""
    given = {"failed": failed, "leaked": leaked, "invalid": invalid, "changed": changed}
    lists = [name for name, wanted in given.items() if wanted]
    if len(lists) + (row_id is not None) != 1:
        fail("give an ID, or one of --failed, --leaked, --invalid and --changed", USAGE)
    if row_id is not None and format in (Format.csv, Format.parquet):
        fail(
            f"--format {format.value} is of a list; the texts behind an ID are text, or --format json", USAGE
        )
    store = open_store(data)
    database = committed_data(store, allow_missing)
    if row_id is not None:
        from tasks.export.show import show as texts_of
        from tasks.export.stored import Stored, UnknownId

        try:
            parts = texts_of(Stored(store, database), row_id)
        except UnknownId as error:
            fail(str(error), USAGE)
        if format is Format.json:
            say_json([asdict(part) for part in parts])
            return
        for part in parts:
            typer.echo(typer.style(visible(f"--- {part.title}"), bold=True))
            say(f"{part.text}\n")
        return
    wanted = "run = $1" if run is not None else "$1::varchar is null"
    query = f"select * from ({LISTS[lists[0]]}) where {wanted} order by run, iteration desc, id limit {limit}"
    known = None if run is None else known_run(store, run)
    write_result(database.sql(query, params=[known]), format, sys.stdout.buffer)
