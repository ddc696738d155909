"""SQL views over real committed folders."""

import io
import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

from schemas.frames import frame_schema, to_frame
from schemas.rows import TABLES, Generation
from storage.files import sha256_file
from storage.sql.catalog import VIEWS, columns, relations, sql_type
from storage.sql.render import render
from storage.sql.views import connect
from storage.store import Committed, Store
from tests.support.committed import commit_rows
from tests.support.rows import episode, evaluation, improvement, training_row, transitions


def rows(database: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    return database.execute(query).fetchall()


def rollout(store: Store, iteration: int, **changes: object) -> Committed:
    played = episode(iteration=iteration, **changes)
    return commit_rows(
        store,
        "rollout",
        iteration,
        {"episodes": [played], "transitions": transitions(played)},
        run=played.run,
    )


def test_a_store_without_data_has_every_table_empty_and_typed_and_creates_nothing(store: Store) -> None:
    database = connect(store)
    for name in (*TABLES, *VIEWS):
        expected = 1 if name == "problems" else 0  # that there is no data root
        assert rows(database, f"select count(*) from {name}") == [(expected,)], name
    assert rows(
        database, "select typeof(any_value(logprobs)), typeof(any_value(success)) from transitions"
    ) == [("DOUBLE[]", "BOOLEAN")]
    assert not store.root.exists()


def test_views_have_the_columns_and_types_of_their_models(store: Store) -> None:
    rollout(store, 0)
    database = connect(store)
    for name, model in {**TABLES, **VIEWS}.items():
        described = [(row[0], row[1]) for row in rows(database, f"describe {name}")]
        assert [column for column, _ in described] == list(model.model_fields), name
        for (column, found), field in zip(described, model.model_fields.values(), strict=True):
            expected = sql_type(field.annotation)
            named = "GENERATION" in expected and found.startswith("STRUCT(")
            assert found == expected or named, (
                name,
                column,
            )


@pytest.mark.parametrize("table", list(TABLES))
def test_files_have_the_types_that_sql_shows(tmp_path: Path, table: str) -> None:
    to_frame(TABLES[table], []).write_parquet(tmp_path / "empty.parquet")
    described = rows(duckdb.connect(), f"describe from '{tmp_path}/empty.parquet'")
    assert {row[0]: row[1] for row in described} == columns(TABLES[table])


def test_views_read_all_iterations_and_runs(store: Store) -> None:
    rollout(store, 0)
    rollout(store, 1)
    rollout(store, 0, run="other", success=True)
    database = connect(store)
    counted = "select run, iteration, count(*) from transitions group by all order by all"
    assert rows(database, counted) == [("other", 0, 2), ("trial", 0, 2), ("trial", 1, 2)]
    assert rows(database, "select run, avg(success::int) from episodes group by 1 order by 1") == [
        ("other", 1.0),
        ("trial", 0.0),
    ]


def test_a_recomputed_stage_replaces_its_rows_and_the_old_ones_stay_reachable(store: Store) -> None:
    first = rollout(store, 0)
    second = commit_rows(
        store, "rollout", 0, {"episodes": [episode(success=True)], "transitions": []}, attempt=2
    )
    database = connect(store)
    assert rows(database, "select success from episodes") == [(True,)]
    old = "select success, folder from superseded.episodes"
    assert rows(database, old) == [(False, first.manifest.folder)]
    states = "select state, folder, rows_out from stages order by state"
    assert rows(database, states) == [
        ("current", second.manifest.folder, 1),
        ("superseded", first.manifest.folder, 3),
    ]


def test_a_stale_stage_still_counts_and_says_so(store: Store) -> None:
    rollout(store, 0)
    current = store.current("trial", 0)
    stale = {name: entry.model_copy(update={"stale": True}) for name, entry in current.stages.items()}
    store.set_current("trial", 0, current.model_copy(update={"stages": stale}))
    database = connect(store)
    assert rows(database, "select state from stages") == [("stale",)]
    assert rows(database, "select count(*) from episodes") == [(1,)]


def test_columns_that_an_older_file_lacks_are_null(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(TABLES["episodes"], "VERSION", 1)
        older = rollout(store, 0)
    played = older.path / "episodes.parquet"
    # As if `invalid_actions` had been added in version 2: the file on disk is of version 1 and lacks it.
    to_frame(TABLES["episodes"], [episode()]).drop("invalid_actions").write_parquet(
        played, metadata={"nlac.schema": "episodes@1"}
    )
    restate(older, "episodes.parquet")
    monkeypatch.setattr(TABLES["episodes"], "VERSION", 2)
    rollout(store, 1)
    problems: list[str] = []
    database = connect(store, problems)
    assert problems == []
    found = rows(database, "select iteration, invalid_actions from episodes order by 1")
    assert found == [(0, None), (1, 0)]
    assert [c[0] for c in rows(database, "describe episodes")] == list(frame_schema(TABLES["episodes"]))


def test_an_evaluation_of_before_there_was_validation_is_of_split_eval(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(TABLES["evaluations"], "VERSION", 2)
        older = commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", 3)]})
    frame = to_frame(TABLES["evaluations"], [evaluation("p", 3)]).drop("split")
    frame.write_parquet(older.path / "evaluations.parquet", metadata={"nlac.schema": "evaluations@2"})
    restate(older, "evaluations.parquet")
    newer = [evaluation("p", n, iteration=1, split=split) for n, split in ((4, "eval"), (5, "validation"))]
    commit_rows(store, "evaluation", 1, {"evaluations": newer})
    problems: list[str] = []
    found = "select iteration, split, successes from evaluations order by all"
    assert rows(connect(store, problems), found) == [
        (0, "eval", 3), (1, "eval", 4), (1, "validation", 5),
    ]  # fmt: skip
    assert problems == [] and older.scan("evaluations").collect()["split"].to_list() == ["eval"]


def test_fields_that_an_older_provenance_lacks_are_null(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(TABLES["transitions"], "VERSION", 1)
        older = rollout(store, 0)
    file = older.path / "transitions.parquet"
    frame = to_frame(TABLES["transitions"], transitions(episode()))
    kept = [name for name in Generation.model_fields if not name.startswith("dropped")]
    frame.with_columns(generation=pl.struct(pl.col("generation").struct.field(*kept))).write_parquet(
        file, metadata={"nlac.schema": "transitions@1"}
    )
    restate(older, "transitions.parquet")
    rollout(store, 1)
    found = rows(
        connect(store),
        "select distinct iteration, generation.engine, generation.dropped_turns from transitions order by 1",
    )
    assert found == [(0, "local", None), (1, "local", 0)]
    committed = store.committed("trial", "rollout", 0)
    assert committed is not None
    assert committed.scan("transitions").collect()["generation"].struct.field("dropped_chars").to_list() == [
        None,
        None,
    ]


def restate(committed: Committed, file: str) -> None:
    """Bring the manifest up to a file that was changed."""
    path = committed.path / file
    entries = [
        e.model_copy(update={"bytes": path.stat().st_size, "sha256": sha256_file(path)})
        if e.path == file
        else e
        for e in committed.manifest.files
    ]
    manifest = committed.manifest.model_copy(update={"files": entries})
    (committed.path / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")


def test_broken_files_are_named_and_left_out(store: Store) -> None:
    good = rollout(store, 0)
    truncated, torn, no_manifest = rollout(store, 1), rollout(store, 2), rollout(store, 3)
    file = truncated.path / "episodes.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    footerless = torn.path / "episodes.parquet"
    footerless.write_bytes(footerless.read_bytes()[:-8] + b"\0" * 8)
    (no_manifest.path / "manifest.json").write_text('{"fingerprint": "ab', encoding="utf-8")
    (store.iteration_dir("trial", 4)).mkdir(parents=True)
    (store.iteration_dir("trial", 4) / "current.json").write_text("{", encoding="utf-8")

    problems: list[str] = []
    database = connect(store, problems)
    assert rows(database, "select distinct iteration from episodes") == [(good.manifest.iteration,)]
    assert rows(database, "select distinct iteration from transitions order by 1") == [(0,), (1,), (2,)]
    named = [str(file), str(footerless), str(no_manifest.path / "manifest.json"), "00004/current.json"]
    for path in named:
        assert sum(path in problem for problem in problems) == 1, path
    assert rows(database, "select count(*) from problems") == [(len(named),)]


def test_paths_with_quotes_and_glob_characters_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "it's [a] *data?")
    rollout(store, 0)
    assert rows(connect(store), "select iteration, count(*) from episodes group by 1") == [(0, 1)]


def test_lineage_leads_from_a_distilled_action_to_its_transition_and_episode(
    store: Store, tmp_path: Path
) -> None:
    rollout(store, 0)
    played = transitions(episode())[1]
    for kind in ("critic", "policy"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "weights").write_text(kind)
    critic, policy = "critic@00000:c", "policy@00000:p"
    made = improvement(played, critic)
    source = training_row("critic-sft", "corrected_targets", made["replay_samples"][0].sample_id, critic)
    commit_rows(store, "bellman-targets", 0, {"replay_samples": made["replay_samples"]})
    commit_rows(store, "critic-sft", 0, {"training_rows": [source]}, adapters={"critic": tmp_path / "critic"})
    commit_rows(store, "critique", 0, {t: made[t] for t in ("futures", "critiques")})
    commit_rows(store, "refinement", 0, {"refinements": made["refinements"]})
    distilled = training_row(
        "policy-distillation", "refinements", made["refinements"][0].refinement_id, policy
    )
    commit_rows(
        store,
        "policy-distillation",
        0,
        {"training_rows": [distilled]},
        adapters={"policy": tmp_path / "policy"},
    )

    database = connect(store)
    [found] = database.sql("select * from lineage").to_arrow_table().to_pylist()
    assert found["refined_action"] == "5"
    assert found["judged_action"] == "9"
    assert found["futures"] == ["future 0", "future 1"]
    assert found["critic_version"] == critic
    assert rows(database, f"select source_id from training_rows where adapter_version = '{critic}'") == [
        (source.source_id,)
    ]
    assert found["distilled_into"] == policy
    assert found["transition_id"] == played.transition_id
    assert (found["replayed_action"], found["done"]) == ("1", True)
    assert found["episode_id"] == played.episode_id
    kinds = rows(database, "select kind, stage from adapters order by 1")
    assert kinds == [("critic", "critic-sft"), ("policy", "policy-distillation")]


def test_every_format_gives_the_same_values() -> None:
    database = duckdb.connect()
    query = "select 1 as n, 'it''s' as s, [1, 2] as l, {'a': null} as g, null::int as z, 'nan'::double as x"

    def rendered(how: str) -> bytes:
        stream = io.BytesIO()
        render(database.sql(query), how, stream)  # type: ignore[arg-type]
        return stream.getvalue()

    assert rendered("csv").decode() == "n,s,l,g,z,x\n1,it's,\"[1, 2]\",{'a': NULL},,nan\n"
    [row] = json.loads(rendered("json"))
    assert row == {"n": 1, "s": "it's", "l": [1, 2], "g": {"a": None}, "z": None, "x": None}
    frame = pl.read_parquet(io.BytesIO(rendered("parquet")))
    assert frame.select("n", "s", "l").rows() == [(1, "it's", [1, 2])]
    assert "it's" in rendered("table").decode()


def test_long_values_are_cut_in_a_table_and_whole_in_lines() -> None:
    long = "word " * 40
    shown = duckdb.connect().sql("select 1 as n, ? as long_text, null as nothing", params=[f"{long}\nend"])
    stream = io.BytesIO()
    render(shown, "table", stream)
    assert max(map(len, stream.getvalue().decode().splitlines())) < 120
    stream = io.BytesIO()
    render(shown, "vertical", stream)
    assert stream.getvalue().decode() == (
        f"--- row 1\n        n  1\nlong_text  {long}\n           end\n  nothing  NULL\n"
    )


def drawn(query: str, width: int) -> list[str]:
    stream = io.BytesIO()
    render(duckdb.connect().sql(query), "table", stream, width)
    return stream.getvalue().decode().splitlines()


def test_columns_share_the_width_and_no_word_is_broken() -> None:
    query = (
        "select 'an/id/without/spaces' as the_id, 'some words that go on and on' as said, 0.123456 as a_share"
    )
    assert drawn(f"{query}, 'x' as a_long_name", 48)[0].split() == ["a_"], (
        "a name that is wider than its values"
    )
    lines = drawn(query, 45)
    assert max(map(len, lines)) <= 45
    assert lines[0].split() == ["the_id", "said", "a_share"]
    assert "an/id/without/spaces" in lines[2] and "some words" in lines[2] and "go on" in lines[3]


def test_what_no_table_of_the_width_holds_is_lines_of_column_and_value() -> None:
    query = "select 'an/id/without/spaces' as the_id, 'another/id/without/spaces' as other_id, 12345.678::double as n"
    assert drawn(query, 40) == [
        "--- row 1",
        "  the_id  an/id/without/spaces",
        "other_id  another/id/without/spaces",
        "       n  12345.7",
        "(1 row)",
    ]


def test_a_table_says_that_there_are_more_rows_than_it_shows() -> None:
    lines = drawn("select x from range(201) t(x)", 80)
    assert lines[-2:] == ["199", "(the first 200 rows; --format csv has all)"]


def test_results_without_rows_are_valid_in_every_format() -> None:
    database = duckdb.connect()
    stream = io.BytesIO()
    render(database.sql("select 1 as a where false"), "json", stream)
    assert json.loads(stream.getvalue()) == []


def test_every_column_of_every_table_has_a_meaning() -> None:
    for relation in relations():
        assert relation.meaning, relation.name
        assert all(column.meaning for column in relation.columns), relation.name


def test_what_a_newer_program_wrote_is_left_out_and_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(TABLES["episodes"], "VERSION", TABLES["episodes"].VERSION + 1)
        rollout(store, 0)
        newer.setitem(TABLES, "later", TABLES["priorities"])
        commit_rows(store, "critic-sft", 0, {"later": []})
    problems: list[str] = []
    database = connect(store, problems)
    assert rows(database, "select count(*) from episodes") == [(0,)]
    assert rows(database, "select count(*) from transitions") == [(2,)]
    assert len(problems) == 2
    assert any("is newer than this program reads; update the program" in problem for problem in problems)
    assert any("table 'later' is unknown to this program" in problem for problem in problems)


def test_a_file_of_another_version_than_its_manifest_says_is_named(store: Store) -> None:
    made = rollout(store, 0)
    file = made.path / "episodes.parquet"
    to_frame(TABLES["episodes"], [episode()]).write_parquet(file, metadata={"nlac.schema": "episodes@0"})
    restate(made, "episodes.parquet")
    problems: list[str] = []
    connect(store, problems)
    assert len(problems) == 1 and "holds episodes@0, the manifest says episodes@" in problems[0]
