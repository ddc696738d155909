"""`nlac runs`: list, compare, copy and delete runs; `nlac gc`: remove what nothing refers to."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import (
    FAILED,
    USAGE,
    AllowMissing,
    Data,
    ListAs,
    ListFormat,
    committed_data,
    complete_run,
    fail,
    known_run,
    open_store,
    say,
    say_json,
)
from flows.cli.sql import Format, write_result
from schemas.shown import counted

if TYPE_CHECKING:
    from storage.garbage import Garbage
    from storage.store import Store

app = typer.Typer(no_args_is_help=True, help="List, compare, copy or delete runs.")
Written = Annotated[Format, typer.Option("--format", help="as for nlac sql")]
Yes = Annotated[bool, typer.Option("--yes", help="do it; without, only say what would be removed")]

LIST = """
with cost as (
    select run, count(distinct iteration) as iterations, sum(tokens)::bigint as tokens, round(sum(seconds)) as seconds,
           left(max(started_at), 16) as last_stage_at
    from stages where state <> 'superseded' group by run
), success as (
    select run, arg_max(success_rate, iteration) as last_success, max(success_rate) as best_success
    from learning_curve group by run
)
select * from cost left join success using (run) order by run
"""
COMPARE = """
select iteration, run, success_rate, success_low, success_high, environment_steps, tokens, seconds
from learning_curve where run in (select unnest($1)) order by iteration, run
"""


@app.command("list")
def list_runs(format: Written = Format.table, allow_missing: AllowMissing = False, data: Data = None) -> None:
    """The runs of the data root: iterations, cost, and success on the eval tasks."""
    database = committed_data(open_store(data), allow_missing)
    write_result(database.sql(LIST), format, sys.stdout.buffer)


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN ...", help="two runs or more", autocompletion=complete_run)
    ],
    format: Written = Format.table,
    allow_missing: AllowMissing = False,
    data: Data = None,
) -> None:
    """Success of several runs, iteration by iteration; as a table and as JSON also the configuration fields that
    differ."""
    store = open_store(data)
    database = committed_data(store, allow_missing)
    named = [known_run(store, run) for run in dict.fromkeys(runs)]
    if len(named) < 2:
        fail("name two runs to compare, for instance: nlac runs compare first second", USAGE)
    found, differing = database.sql(COMPARE, params=[named]), _differences(store, named)
    if format is Format.json:
        say_json({"evaluations": found.to_arrow_table().to_pylist(), "differences": differing})
        return
    write_result(found, format, sys.stdout.buffer)
    if format is Format.table:
        for field, values in differing.items():
            say(f"{field}: " + ", ".join(f"{run} {value}" for run, value in values.items()))


def _differences(store: "Store", runs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Each field in which the runs' latest configurations differ, with its value in each run."""
    from storage.mlflow.records import flatten
    from tasks.pipeline.iterations import frozen_config

    configs = {}
    for run in runs:
        known = (frozen_config(store, run, number) for number in reversed(store.iterations(run)))
        found = next((config for config in known if config is not None), None)
        configs[run] = flatten(found.model_dump(mode="json", exclude={"run"})) if found else {}
    names = sorted({name for config in configs.values() for name in config})
    said = {name: {run: config.get(name, "-") for run, config in configs.items()} for name in names}
    return {name: values for name, values in said.items() if len(set(values.values())) > 1}


@app.command()
def delete(
    run: Annotated[
        str, typer.Argument(help="run to delete, with its records in MLflow", autocompletion=complete_run)
    ],
    yes: Yes = False,
    data: Data = None,
) -> None:
    """Delete a run: its tables, adapters and configurations, and its experiment and model versions in MLflow. Prefect
    keeps the history of its flow runs."""
    from storage.garbage import remove_run
    from storage.mlflow.bridge import Bridge
    from tasks.pipeline.iterations import frozen_config

    store = open_store(data)
    known_run(store, run)
    for other in store.runs():
        begun = [n for n in store.iterations(other) if other != run and store.config_path(other, n).exists()]
        if any(run in frozen_config(store, other, n).replay.from_runs for n in begun):  # type: ignore[union-attr]
            fail(f"run '{other}' replays run '{run}' (replay.from_runs); delete that one first", USAGE)
    if not yes:
        shown = store.place.shown(store.run_dir(run))
        say(f"{shown} and run '{run}' in MLflow would be deleted. Nothing is: add --yes")
        return
    remove_run(store, run)
    bridge = Bridge(store.root)
    if bridge.backend.exists and bridge.forget_run(run) is None:
        fail(f"run '{run}' is deleted, but MLflow's records of it are not; see the warning above", FAILED)
    say(f"run '{run}' is deleted")


@app.command()
def copy(
    run: Annotated[str, typer.Argument(help="run to copy", autocompletion=complete_run)],
    to: Annotated[
        str, typer.Option(metavar="DIR", help="data root to copy into: a folder, or s3://BUCKET/PREFIX")
    ],
    data: Data = None,
) -> None:
    """Copy a run into another data root, where it goes on; again, to bring what is new. MLflow's records stay."""
    from storage.copying import copy_run

    store, target = open_store(data), open_store(to)
    known_run(store, run)
    done = copy_run(store, run, target)
    say(
        f"run '{run}': {done.folders} stage folders with {done.files} files, {done.bytes / 1e6:.2f} MB, are copied to "
        f"{target}; {done.there} were there"
    )


def gc(yes: Yes = False, format: ListAs = ListFormat.table, data: Data = None) -> None:
    """Remove superseded attempts, and journals and checkpoints of finished stages. What is current or referred to
    stays."""
    from storage.garbage import garbage, remove_garbage

    store = open_store(data)
    aliased = _aliased(store)
    found = remove_garbage(store, aliased) if yes else garbage(store, aliased)
    if format is ListFormat.json:
        say_json([{**asdict(one), "path": one.path.relative_to(store.root), "removed": yes} for one in found])
        return
    for one in found:
        say(f"{one.bytes / 1e6:10.2f} MB  {one.kind:<18}  {one.path.relative_to(store.root)}")
    ending = "removed" if yes else "can be removed. Nothing is: add --yes"
    say(f"{_total(found)} {ending}" if found else "nothing to remove")


def _total(found: "Sequence[Garbage]") -> str:
    return f"{counted(len(found), 'item')}, {sum(one.bytes for one in found) / 1e6:.2f} MB"


def _aliased(store: "Store") -> list[Path]:
    """Folders of the adapters that MLflow's aliases name, such as champion."""
    from storage.mlflow.bridge import Bridge

    bridge = Bridge(store.root)
    if not bridge.backend.exists:
        return []
    sources = bridge.aliased_sources()
    if sources is None:
        fail(
            "MLflow can't say which adapters are champions, so nothing is removed; see the warning above",
            FAILED,
        )
    return [Path(source) for source in sources]
