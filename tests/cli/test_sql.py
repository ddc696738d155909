"""`nlac sql`: committed tables, and nothing else."""

import io
import json
from pathlib import Path

import polars as pl
import pytest

from schemas.rows import TABLES
from storage.store import Store
from tests.support.cli import nlac
from tests.support.committed import commit_episode


def test_sql_answers_over_committed_data(store: Store) -> None:
    commit_episode(store)
    query = "select iteration, avg(success::int) as rate from episodes group by 1"
    assert json.loads(nlac(store, "sql", query, "--format", "json").stdout) == [{"iteration": 0, "rate": 1.0}]
    assert nlac(store, "sql", query, "--format", "csv").stdout == "iteration,rate\n0,1.0\n"
    assert "rate" in nlac(store, "sql", query).stdout
    parquet = nlac(store, "sql", query, "--format", "parquet").stdout_bytes
    assert pl.read_parquet(io.BytesIO(parquet)).rows() == [(0, 1.0)]


def test_sql_writes_to_a_file(store: Store, tmp_path: Path) -> None:
    commit_episode(store)
    out = tmp_path / "out.parquet"
    assert nlac(store, "sql", "from transitions", "--format", "parquet", "--output", str(out)).exit_code == 0
    assert pl.read_parquet(out).height == 2


def test_sql_alone_lists_every_table_with_its_columns(store: Store) -> None:
    listed = nlac(store, "sql").stdout
    for name, model in TABLES.items():
        assert f"\n{name}: " in f"\n{listed}"
        assert all(column in listed for column in model.model_fields)
    assert "the environment's own definition of success" in listed
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select sucess from episodes", '"success"'),
        ("select * from epsodes", '"episodes"'),
        ("selec 1", "syntax error"),
        ("", "empty"),
    ],
)
def test_a_wrong_query_is_one_line_with_the_near_name(store: Store, query: str, said: str) -> None:
    commit_episode(store)
    result = nlac(store, "sql", query)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "query",
    [
        "from read_text('{secret}')",
        "from read_blob('{folder}/../secret')",
        "from read_csv('{secret}')",
        "from '{secret}'",
        "from glob('{folder}/*')",
        "from query('from read_text(''{secret}'')')",
        "from sniff_csv('{secret}')",
        "from read_parquet('{folder}/other.parquet')",
        "select * from episodes, read_text('{secret}')",
        "copy episodes to '{folder}/copy.csv'",
        "explain analyze copy episodes to '{folder}/copy.csv'",
        "export database '{folder}/copy'",
        "attach '{folder}/new.db'",
        "install httpfs",
        "load httpfs",
        "from enable_logging(storage='file', storage_path='{folder}/logs')",
        "from enable_profiling(save_location='{folder}/profile')",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "reset allowed_paths",
        "create table copied as from episodes",
        "drop view episodes",
        "pragma memory_limit='1GB'",
        "select 1; select 2",
        "select 1; copy episodes to '{folder}/copy.csv'",
    ],
)
def test_a_query_reads_the_tables_and_no_other_file(store: Store, tmp_path: Path, query: str) -> None:
    commit_episode(store)
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("planted\n")
    folder.mkdir()
    pl.DataFrame({"a": ["planted"]}).write_parquet(folder / "other.parquet")
    result = nlac(store, "sql", query.format(secret=secret, folder=folder), "--format", "csv")
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)
    assert "planted" not in result.output
    assert [path.name for path in folder.iterdir()] == ["other.parquet"]


@pytest.mark.parametrize(
    "query",
    [
        "explain from episodes",
        "describe lineage",
        "show tables",
        "summarize episodes",
        "values (1)",
        "with e as (from episodes) select * from e -- one; two",
        "from superseded.episodes union all by name from episodes;",
        "from (pivot episodes on done in (true) using count(*))",
    ],
)
def test_every_way_to_ask_the_tables_is_allowed(store: Store, query: str) -> None:
    commit_episode(store)
    result = nlac(store, "sql", query, "--format", "csv")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") > 1


def test_unsafe_runs_any_sql(store: Store, tmp_path: Path) -> None:
    commit_episode(store)
    out = tmp_path / "out.csv"
    copied = nlac(
        store, "sql", f"set threads = 1; copy (select success from episodes) to '{out}'", "--unsafe"
    )
    assert copied.exit_code == 0, copied.stderr
    assert out.read_text() == "success\ntrue\n"
    read = nlac(store, "sql", f"select success from '{out}'", "--unsafe", "--format", "csv")
    assert read.stdout == "success\ntrue\n"
