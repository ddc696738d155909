"""SQL over all committed data: in-memory DuckDB views over Parquet files, so no reader locks out a writer.

    episodes, transitions, ...   one view per table, over the current folder of each stage and iteration
    superseded.episodes, ...     the same tables of folders that were replaced; `folder` tells attempts apart
    stages, adapters             one row per committed stage or adapter, from the manifests
    lineage                      one row per distilled action, joined back to its transition and episode
    generations ... comparison   what was written and what it cost, and how good it is (storage.sql.measures)
    problems                     broken files, which are left out

A view checks sizes and Parquet footers; `nlac verify` compares contents (sha256). Queries read the files of the views
and no other, and change no setting.
"""

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
from pydantic import BaseModel

from schemas.manifest import FileEntry, TableEntry
from schemas.rows import TABLES
from storage.folders import Folder, folders
from storage.parquet.footers import TableError, read_stamp
from storage.sql.catalog import AdapterRow, ProblemRow, StageRow, columns
from storage.sql.measures import MEASURES
from storage.store import Store

SUPERSEDED = "superseded"

LINEAGE = """
create view lineage as
with judged as (
    select critique_id, list(future_id order by future_id) as future_ids,
           list(description order by future_id) as futures,
           any_value(generation.model_version) as critic_version
    from futures group by critique_id
), distilled as (
    select run, iteration, source_id, any_value(adapter_version) as policy_version
    from training_rows where stage = 'policy-distillation' and source_table = 'refinements' group by all
)
select r.run, r.iteration, r.refinement_id, r.kind, r.thought as refined_thought,
       r.action as refined_action, r.changed, distilled.policy_version as distilled_into,
       c.critique_id, c.optimal, c.critique, c.action_source, c.action as judged_action,
       judged.future_ids, judged.futures, judged.critic_version,
       s.sample_id, s.priority, s.probability, s.weight,
       t.transition_id, t.iteration as transition_iteration, t.step, t.observation,
       t.action as replayed_action, t.reward, t.done, t.truncated, t.policy_version as acted_by,
       e.episode_id, e.environment, e.task_id, e.success as episode_success, e.reward as episode_reward
from refinements r
left join critiques c on c.critique_id = r.critique_id
left join judged on judged.critique_id = c.critique_id
left join distilled on distilled.source_id = r.refinement_id
                   and distilled.run = r.run and distilled.iteration = r.iteration
left join replay_samples s on s.sample_id = r.sample_id
left join transitions t on t.transition_id = s.transition_id
left join episodes e on e.episode_id = t.episode_id
where r.distil
"""


def connect(
    store: Store, problems: list[str] | None = None, *, unsafe: bool = False
) -> duckdb.DuckDBPyConnection:
    """A private in-memory database with the views named at the top of this module.

    Args:
        store: the store; a data root that does not exist gives empty tables.
        problems: broken files are appended here, by name, and left out of the views.
        unsafe: queries may read and write any file, and change settings.

    Returns:
        The connection; a query spills to `<data>/.duckdb` beyond half of the machine's memory.
    """
    problems = problems if problems is not None else []
    found = list(folders(store, problems))
    database = duckdb.connect(
        config={
            "memory_limit": "50%",
            "temp_directory": str(store.root / ".duckdb"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    fetch_tables(store, found)
    files = _table_files(store, found, problems)
    database.execute(f"create schema typed; create schema {SUPERSEDED}")
    for name, model in TABLES.items():
        database.execute(f"create table typed.{name} ({_columns(model)})")
        database.execute(f"create view {name} as {_select(name, files[name, False])}")
        database.execute(
            f"create view {SUPERSEDED}.{name} as "
            + _select(name, files[name, True], ", parse_filename(parse_dirpath(filename)) as folder")
        )
    _table(database, "stages", StageRow, [_stage_row(folder) for folder in found])
    _table(database, "adapters", AdapterRow, [row for folder in found for row in _adapter_rows(folder)])
    _table(database, "problems", ProblemRow, [{"problem": problem} for problem in problems])
    database.execute(LINEAGE)
    for name, (measured, query) in MEASURES.items():
        shown = ", ".join(f'"{column}"::{kind} as "{column}"' for column, kind in columns(measured).items())
        database.execute(f"create view {name} as select {shown} from ({query})")
    if not unsafe:
        paths = [path for versions in files.values() for listed in versions.values() for path in listed]
        database.execute(f"set allowed_paths = {_list(paths)}")
        database.execute("set enable_external_access = false; set lock_configuration = true")
    return database


def fetch_tables(store: Store, found: list[Folder]) -> None:
    """Bring the tables of all folders to where they are read, and no adapter."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda folder: store.place.fetch(folder.path, _table_entries(folder)), found))


def _table_entries(folder: Folder) -> list[FileEntry]:
    tables = {entry.file for entry in folder.manifest.tables.values()}
    return [entry for entry in folder.manifest.files if entry.path in tables]


def _table_files(
    store: Store, found: list[Folder], problems: list[str]
) -> dict[tuple[str, bool], dict[str, list[str]]]:
    """(table, superseded) -> schema version -> its files, without those that are truncated or not ours."""
    files: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for folder in found:
        listed = {f.path: f for f in folder.manifest.files}
        for name, entry in folder.manifest.tables.items():
            path = folder.path / entry.file
            try:
                shown = store.place.shown(folder.path, listed.get(entry.file))
                stamp = _check_file(path, shown, folder, name, entry, listed.get(entry.file))
            except TableError as error:
                problems.append(str(error))
                continue
            files[name, folder.state == SUPERSEDED][stamp].append(str(path))
    return files


def _check_file(
    path: Path, shown: str, folder: Folder, name: str, entry: TableEntry, listed: FileEntry | None
) -> str:
    m, expected = folder.manifest, listed.bytes if listed else None
    remedy = f"restore it, or recompute {m.stage} of iteration {m.iteration} with force=true"
    if name not in TABLES:
        raise TableError(f"{shown}: table '{name}' is unknown to this program; update the program")
    try:
        size = path.stat().st_size
    except OSError:
        size = None
    if size is None or size != expected:
        found = "missing" if size is None else f"{size} bytes"
        raise TableError(f"{shown}: {found}, the manifest says {expected} bytes; {remedy}")
    stamp = read_stamp(path)
    if stamp != entry.schema_version:
        raise TableError(f"{shown}: holds {stamp}, the manifest says {entry.schema_version}; {remedy}")
    if int(stamp.partition("@")[2]) > TABLES[name].VERSION:
        raise TableError(f"{shown}: {stamp} is newer than this program reads; update the program")
    return stamp


def _select(table: str, by_version: dict[str, list[str]], extra: str = "") -> str:
    # One read_parquet per schema version: to plan a query, DuckDB reads the footer of its first file only. The typed
    # empty table gives the columns their order and types, and NULL (or OLDER) where an older version lacks one.
    # hive_partitioning would replace the column `iteration` by the value in the folder's name.
    parts = [f"select *{', null::varchar as folder' if extra else ''} from typed.{table}"]
    for _, paths in sorted(by_version.items()):
        parts.append(f"select *{extra} from read_parquet({_list(paths)}, hive_partitioning = false)")
    united = " union all by name ".join(parts)
    filled = ", ".join(f"coalesce({c}, '{value}') as {c}" for c, value in TABLES[table].OLDER.items())
    return f"select * replace ({filled}) from ({united})" if filled else united


def _list(texts: list[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _columns(model: type[BaseModel]) -> str:
    return ", ".join(f'"{name}" {kind}' for name, kind in columns(model).items())


def _table(
    database: duckdb.DuckDBPyConnection, name: str, model: type[BaseModel], rows: list[dict[str, Any]]
) -> None:
    database.execute(f"create table {name} ({_columns(model)})")
    values, shape = json.dumps(rows), json.dumps([columns(model)])
    database.execute(
        f"insert into {name} select r.* from (select unnest(from_json($1, $2)) as r)", [values, shape]
    )


def _stage_row(folder: Folder) -> dict[str, Any]:
    m = folder.manifest
    return dict(
        run=m.run, iteration=m.iteration, stage=m.stage, state=folder.state, fingerprint=m.fingerprint,
        attempt=m.attempt, rows_in=m.rows_in, rows_out=sum(t.rows for t in m.tables.values()),
        rejected=sum(t.rejected for t in m.tables.values()), tokens=m.tokens, seconds=m.seconds,
        started_at=m.started_at, prefect_flow_run_id=m.prefect_flow_run_id, mlflow_run_id=m.mlflow_run_id,
        path=str(folder.path), folder=m.folder,
    )  # fmt: skip


def _adapter_rows(folder: Folder) -> list[dict[str, Any]]:
    m = folder.manifest
    return [
        dict(
            run=m.run, iteration=m.iteration, stage=m.stage, state=folder.state, kind=kind,
            version=entry.version, digest=entry.digest, path=str(folder.path / entry.folder),
        )
        for kind, entry in m.adapters.items()
    ]  # fmt: skip
