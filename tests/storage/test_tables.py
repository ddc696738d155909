"""Tables: the row model is the schema, digests are of content, old files read, damaged ones are named."""

import polars as pl
import pytest
from pydantic import BaseModel

from schemas.frames import dtype_of, frame_schema, to_frame
from schemas.rows import TABLES, Generation, Priority, Row, Transition
from storage.parquet.footers import STAMP, TableError, read_stamp, schema_stamp
from storage.parquet.table_stream import TableStream
from storage.parquet.tables import scan_table, scan_tables, table_digest, write_table


def priority(number: int, **changes: object) -> Priority:
    values = {
        "run": "r", "iteration": 0, "transition_id": f"t{number}", "priority": number / 7, "priority_kind": "nll",
        "critic_logprob": -1.5, "description_tokens": 3,
    }  # fmt: skip
    return Priority.model_validate({**values, **changes})


@pytest.mark.parametrize("model", TABLES.values(), ids=TABLES)
def test_every_field_has_a_column_and_a_meaning(model: type[Row]) -> None:
    schema = frame_schema(model)
    assert list(schema) == list(model.model_fields)
    assert all(field.description for field in model.model_fields.values())
    assert (model.__doc__ or "").strip()


def test_row_models_and_frames_agree_on_values() -> None:
    generation = Generation(
        engine="e", model_version="m", prompt_digest="d", temperature=0.5, top_p=1.0, max_tokens=4, seed=2**62,
        prompt_tokens=1, completion_tokens=2, finish_reason="stop",
    )  # fmt: skip
    row = Transition(
        run="r", iteration=1, transition_id="t", episode_id="e", split="train", step=0, task_id="k", observation="o",
        raw_action="w", thought="", action="a", action_valid=True, next_observation="n", reward=1.0, game_reward=0.5,
        success=True, done=True, truncated=False, policy_version="base", token_ids=[1, 2], logprobs=[-0.5, -0.25],
        generation=generation,
    )  # fmt: skip
    back = to_frame(Transition, [row]).row(0, named=True)
    assert Transition.model_validate(back) == row


def test_a_type_without_a_column_is_refused() -> None:
    with pytest.raises(TypeError, match="no column type"):
        dtype_of(dict[str, int])

    class Nested(BaseModel):
        x: int

    assert dtype_of(Nested) == pl.Struct({"x": pl.Int64})


def test_the_digest_is_of_content_not_of_chunks() -> None:
    rows = [priority(n) for n in range(100)]
    whole = to_frame(Priority, rows)
    pieces = pl.concat([whole.slice(0, 13), whole.slice(13, 50), whole.slice(63)], rechunk=False)
    assert pieces.n_chunks() > whole.n_chunks()
    assert table_digest(pieces) == table_digest(whole)
    assert table_digest(whole.reverse()) != table_digest(whole)
    assert table_digest(to_frame(Priority, [*rows[:-1], priority(99, priority=0.0)])) != table_digest(whole)


def test_the_footer_names_table_and_version(tmp_path) -> None:
    path = tmp_path / "priorities.parquet"
    write_table(path, Priority, to_frame(Priority, [priority(1)]))
    assert read_stamp(path) == schema_stamp(Priority) == f"priorities@{Priority.VERSION}"
    with pytest.raises(TableError, match="holds priorities"):
        scan_table(path, Transition)


def test_the_stamp_is_found_in_a_long_footer_and_in_one_that_pyarrow_wrote(tmp_path) -> None:
    frame = to_frame(Priority, [priority(n) for n in range(400)])
    long = tmp_path / "long.parquet"
    frame.write_parquet(long, row_group_size=2, metadata={STAMP: schema_stamp(Priority)})
    assert int.from_bytes(long.read_bytes()[-8:-4], "little") > 100_000
    with TableStream(tmp_path, Priority) as stream:
        stream.append(priority(1))
    assert read_stamp(long) == read_stamp(tmp_path / "priorities.parquet") == schema_stamp(Priority)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 40, b"\0" * 40 + b"\xff\0\0\0PAR1"])
def test_what_is_no_whole_parquet_file_is_reported_by_name(tmp_path, content: bytes) -> None:
    (tmp_path / "torn.parquet").write_bytes(content)
    with pytest.raises(TableError, match=r"torn\.parquet: not a readable Parquet file"):
        read_stamp(tmp_path / "torn.parquet")


def test_a_parquet_file_of_someone_else_is_reported_by_name(tmp_path) -> None:
    to_frame(Priority, [priority(1)]).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(TableError, match=r"other\.parquet: no nlac\.schema in its footer"):
        read_stamp(tmp_path / "other.parquet")


def test_several_files_read_in_their_order_whatever_their_versions(tmp_path) -> None:
    paths = [tmp_path / f"{n}.parquet" for n in range(3)]
    for n, path in enumerate(paths):
        frame = to_frame(Priority, [priority(2 * n), priority(2 * n + 1)])
        old = frame.drop("backup_logprob") if n == 1 else frame
        old.write_parquet(path, metadata={STAMP: schema_stamp(Priority)})
    found = scan_tables(paths, Priority).select("transition_id", "backup_logprob").collect()
    assert found["transition_id"].to_list() == [priority(n).transition_id for n in range(6)]
    assert found["backup_logprob"].is_null().to_list()[2:4] == [True, True]


def test_a_file_of_an_older_version_reads_with_null(tmp_path) -> None:
    path = tmp_path / "old.parquet"
    old = to_frame(Priority, [priority(1)]).drop("backup_logprob")
    old.write_parquet(path, metadata={STAMP: schema_stamp(Priority)})
    frame = scan_table(path, Priority).collect()
    assert frame.schema == frame_schema(Priority)
    assert frame["backup_logprob"].to_list() == [None]


def test_a_file_of_a_newer_version_is_refused(tmp_path) -> None:
    path = tmp_path / "new.parquet"
    to_frame(Priority, [priority(1)]).write_parquet(
        path, metadata={STAMP: f"priorities@{Priority.VERSION + 1}"}
    )
    with pytest.raises(TableError, match="this program reads"):
        scan_table(path, Priority)


def test_a_truncated_file_is_reported_by_name(tmp_path) -> None:
    path = tmp_path / "priorities.parquet"
    write_table(path, Priority, to_frame(Priority, [priority(n) for n in range(50)]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TableError, match=r"priorities\.parquet: not a readable Parquet file"):
        scan_table(path, Priority)


def test_a_frame_with_other_columns_is_not_written(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(TableError, match="are not those of"):
        write_table(path, Priority, to_frame(Priority, [priority(1)]).drop("priority"))
    assert not path.exists()
