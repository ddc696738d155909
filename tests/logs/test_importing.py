"""Logged conversations as episodes and transitions: exact, once, whole or not at all, in constant memory."""

import datetime
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.sql.views import connect
from storage.store import Store
from storage.verify import verify
from tasks.logs import records
from tasks.logs.conversation import logged_messages, read_conversation
from tasks.logs.importing import ImportResult, import_log, load_tools
from tasks.logs.records import LogFormat, UnreadableLog, read_records
from tasks.logs.schema import Rejected
from tasks.runtime.stage import StageFailed
from tests.support.committed import commit_rows
from tests.support.large_log import import_apart, write_log
from tests.support.logs import AIRLINE, TOOLS, call, conversation, write_json
from tests.support.rows import episode, transitions

Record = dict[str, Any]


def imported(store: Store, path: Path, how: LogFormat = "openai-chat", **options: Any) -> ImportResult:
    return import_log(store, "log", path, how, **options)


def read(record: Record, **options: Any) -> Any:
    return read_conversation(record, 0, run="log", iteration=0, tools=options.get("tools", []))


def test_a_step_is_what_was_seen_and_what_the_agent_wrote() -> None:
    steps = read(conversation(7, reward=0.5)).transitions
    assert [s.observation for s in steps] == [
        "Policy: be brief.\n\nUser: Where is order #7?",
        'Result of get_order: {"status": "späť"}',
        "Result of get_order: \n\nResult of think: done",
    ]
    assert [s.raw_action for s in steps] == [
        'Thought: I look it up.\nAction: {"name": "get_order", "arguments": {"order": "#1"}}',
        'Action: [{"name": "get_order", "arguments": {"order": "#1", "page": 2}}, {"name": "think", "arguments": {}}]',
        'Action: {"name": "respond", "arguments": {"content": "It says \\"späť\\".\\nAnything else?"}}',
    ]
    assert [s.thought for s in steps] == ["I look it up.", "", ""]
    assert all(s.action_valid and s.action in s.raw_action for s in steps)
    assert [s.next_observation for s in steps] == [steps[1].observation, steps[2].observation, "User: No."]
    assert [(s.done, s.truncated, s.reward, s.success) for s in steps] == [
        (False, False, 0.0, False), (False, False, 0.0, False), (True, False, 0.5, False),
    ]  # fmt: skip


def test_the_episode_keeps_what_else_the_record_holds() -> None:
    made = read(conversation(3, reward=1.0, info={"cost": 0.25}, model="strong-1", split="eval")).episode
    assert (made.steps, made.reward, made.success, made.done, made.task_id) == (3, 1.0, True, True, "t1")
    assert (made.policy_version, made.split) == ("strong-1", "eval")
    assert json.loads(made.record_fields or "") == {
        "trial": 3, "info": {"cost": 0.25}, "model": "strong-1", "split": "eval",
    }  # fmt: skip
    assert read(conversation(3, reward=0.2, success=True)).episode.success


def test_tools_stand_after_the_system_prompt_and_are_kept_whole(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tools.json", [TOOLS[0]["function"]])  # type: ignore[list-item]
    made = read(conversation(0), tools=load_tools(path))
    assert made.transitions[0].observation == (
        "Policy: be brief.\n\nTools:\n- get_order(order: string, page?: integer): Look an order up.\n\n"
        "User: Where is order #0?"
    )
    assert json.loads(made.episode.tools or "") == TOOLS
    own = [{"function": {"name": "other"}}]
    assert json.loads(read(conversation(0, tools=own), tools=TOOLS).episode.tools) == own
    with pytest.raises(UnreadableLog, match=r"tools\.json: tool 0\.function\.name: Field required"):
        load_tools(write_json(path, [{"function": {}}]))


@pytest.mark.parametrize(
    ("content", "calls", "valid"),
    [
        ('Thought: x\nAction: {"name": "f", "arguments": {}}', None, True),  # in the format already
        ("Action: [5]", None, True),  # any other text is said to the user
        ("", None, False),
        (None, [{"function": {"name": "f", "arguments": "not JSON"}}], False),
        (None, [{"function": {"name": "f", "arguments": "[1]"}}], False),
        ("Action: now", [call("1", "f")], True),  # a thought that speaks of an action
        ("so\nAction: now", [call("1", "f")], True),  # the same, in lines that become one
    ],
)
def test_an_action_is_valid_if_it_parses(content: str | None, calls: list[Any] | None, valid: bool) -> None:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    (step,) = read({"reward": 0, "messages": [message]}).transitions
    assert step.action_valid is valid
    assert step.raw_action == content if content and "Thought: x" in content else step.raw_action != content


@pytest.mark.parametrize(
    ("record", "kind", "reason"),
    [
        ([1], "not_a_record", "this is list"),
        ({"reward": 1}, "bad_messages", "messages: Field required"),
        ({"messages": conversation(0)["messages"]}, "bad_reward", "reward: Field required"),
        (conversation(0, reward=float("nan")), "bad_reward", "reward: .*finite"),
        ({"reward": 1, "messages": [{"role": "user", "content": "hi"}]}, "no_agent_step", "role assistant"),
        (
            {"reward": 1, "messages": [{"role": "bot", "content": "x"}]},
            "bad_messages",
            r"messages\.0\.role: ",
        ),
        (
            {
                "reward": 1,
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            },
            "bad_messages",
            r"messages\.0\.content.*type: Input should be 'text'",
        ),
        (
            {
                "reward": 1,
                "messages": [{"role": "assistant", "content": None, "function_call": {"name": "f"}}],
            },
            "bad_messages",
            r"messages\.0\.function_call",
        ),
        (conversation(0, split="test"), "bad_field", "split: "),
    ],
)
def test_what_can_not_be_used_is_rejected_with_the_reason(record: Any, kind: str, reason: str) -> None:
    with pytest.raises(Rejected, match=reason) as rejected:
        read(record)
    assert rejected.value.kind == kind


def test_rejects_are_a_table_beside_the_episodes(store: Store, tmp_path: Path) -> None:
    lines = [
        json.dumps(conversation(0)),
        "",
        '{"reward": 1, "messages": [',
        json.dumps({"reward": 1}),
        "\xff",
    ]
    path = tmp_path / "log.jsonl"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    done = imported(store, path, "jsonl")
    assert (done.episodes, done.transitions, done.rejects) == (1, 3, {"bad_messages": 1, "not_json": 2})
    found = connect(store).sql("select record, status, file, excerpt from rejects order by record").fetchall()
    assert [row[:3] for row in found] == [(2, "not_json", path.name), (3, "bad_messages", path.name),
                                          (4, "not_json", path.name)]  # fmt: skip
    assert found[0][3].startswith('{"reward"')
    assert verify(store) == []


def offering(**parameters: object) -> Record:
    """A record that offers a tool with these parameters."""
    return conversation(0, tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def said(content: str) -> Record:
    return {"reward": 1, "messages": [{"role": "assistant", "content": content}]}


BAD = {
    "5": "not_a_record",
    "null": "not_a_record",
    '"tools"': "not_a_record",
    "[]": "not_a_record",
    json.dumps(offering(properties=[])): "bad_field",
    json.dumps(offering(properties=None)): "bad_field",
    json.dumps(offering(properties={"a": {}}, required=5)): "bad_field",
    json.dumps(conversation(0, tools=5)): "bad_field",
    json.dumps(conversation(0))[:-1] + ', "other": ' + "[" * 100_000 + "]" * 100_000 + "}": "too_deep",
    json.dumps(conversation(0))[:-1] + ', "other": ' + "1" * 5000 + "}": "not_json",  # more than Python takes
    json.dumps(conversation(0))[:-1] + ', "other": "\x00"}': "not_json",
    json.dumps(conversation(0))[:-1] + ', "other": "\udcff"}': "not_json",  # a byte that is no UTF-8
    json.dumps(conversation(0))[:-1] + ",}": "not_json",
    '{"reward" 1}': "not_json",
    json.dumps(conversation(0))[:-1] + ', "other": ' + "[" * 200 + "]" * 200 + "}": "too_deep",
    json.dumps(conversation(0))[:-1] + ', "reward": 1e999}': "bad_reward",
    json.dumps(conversation(0, reward=10**400)): "bad_reward",
    '{"traj": 5, "messages": null, "reward": 1}': "bad_messages",
    '{"messages": [], "reward": 1}': "no_agent_step",
}


@pytest.mark.parametrize("how", ["jsonl", "openai-chat"])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_every_bad_record_is_a_row_of_rejects(
    store: Store, tmp_path: Path, how: LogFormat, tools: list[Record]
) -> None:
    good = json.dumps(conversation(0))
    lines = [good, *BAD, good]
    path = tmp_path / "log"
    text = "\n".join(lines) if how == "jsonl" else f"[{','.join(lines)}]"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = imported(store, path, how, tools=tools)
    assert done.episodes == 2
    found = connect(store).sql("select record, status from rejects order by record").fetchall()
    assert found == list(enumerate(BAD.values(), start=1))


def test_a_lone_surrogate_is_a_row_of_rejects(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    bad = [conversation(0, task_id="\ud83d"), conversation(0, other="\ud83d"), said("\ud83d")]
    called = {"role": "assistant", "content": None, "tool_calls": [call("1", "f", a="\ud83d")]}
    inner = {"reward": 1, "messages": [called]}  # in JSON of its own, whose reader replaces it
    path.write_text("\n".join(json.dumps(record) for record in [conversation(0), *bad, inner]))
    done = imported(store, path, "jsonl")
    assert done.rejects == {"not_text": 3} and done.episodes == 2


def test_a_line_of_json_that_python_can_not_hold_is_a_row_of_rejects(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    digits = json.dumps(conversation(0))[:-1] + ', "other": ' + "1" * 5000 + "}"
    path.write_text("\n".join([json.dumps(conversation(0)), "[" * 100_000, digits]))
    assert imported(store, path, "jsonl").rejects == {"not_json": 1, "too_deep": 1}


@given(
    values=st.lists(st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.sampled_from('[]{},:"\\\\ aé1')),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from('a"]}'), inner, max_size=3),
        max_leaves=8,
    ), max_size=5),
    chunk=st.integers(1, 40), indent=st.sampled_from([None, 1]), ascii=st.booleans(),
)  # fmt: skip
def test_the_values_of_an_array_are_found_wherever_its_pieces_end(
    values: list[Any], chunk: int, indent: int | None, ascii: bool
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii).encode()
    objects = " ".join(json.dumps({"a": value}, ensure_ascii=ascii) for value in values).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "CHUNK", chunk)
        found = [json.loads(value) for value in records._values(io.BytesIO(text), 1)]
        assert json.dumps(found) == json.dumps(values)
        found = [json.loads(value)["a"] for value in records._values(io.BytesIO(objects), 0)]
        assert json.dumps(found) == json.dumps(values)


@pytest.mark.parametrize("broken", [
    '{"reward": 1, "text": "no end}', "{'reward': 1}", '{"reward": 1]', '{"reward": 1', '{"reward": 1}]', "reward",
])  # fmt: skip
def test_where_the_end_of_a_record_is_not_to_be_told_nothing_is_imported(
    store: Store, tmp_path: Path, broken: str
) -> None:
    good = json.dumps(conversation(0))
    path = tmp_path / "log.json"
    path.write_text(f"[{good}, {broken}, {good}" + (", " + good) * 2000 + "]")
    with pytest.raises(
        UnreadableLog, match=r"not valid JSON after record [012] .*rejects only the broken ones"
    ):
        imported(store, path)


@pytest.mark.parametrize(
    "content",
    ['Action: {"name": "f", "arguments": ' + '{"a":' * 50_000, 'Action: {"name": ' + "1" * 5000 + "}"],
)
def test_an_action_that_can_not_be_read_harms_no_other_record(
    store: Store, tmp_path: Path, content: str
) -> None:
    path = write_json(tmp_path / "log.json", [conversation(0), said(content)])
    done = imported(store, path)
    assert done.episodes + sum(done.rejects.values()) == 2


def test_a_row_of_parquet_that_is_no_text_is_a_row_of_rejects(store: Store, tmp_path: Path) -> None:
    rows = [json.dumps(conversation(0)["messages"]).encode()] * 2
    texts = pa.array([*rows, b"\xff"], pa.binary()).view(pa.string())
    dates = pa.array([datetime.date(2026, 1, 1)] * 3)
    table = pa.table({"messages": texts, "reward": [1.0] * 3, "day": dates})
    pq.write_table(table, tmp_path / "log.parquet")
    done = imported(store, tmp_path / "log.parquet", "parquet")
    assert (done.episodes, done.rejects) == (2, {"not_text": 1})
    kept = done.committed.scan("episodes").collect()["record_fields"]
    assert kept.to_list() == ['{"day": "2026-01-01"}'] * 2


def test_the_same_file_twice_adds_nothing_and_another_one_goes_to_the_next_iteration(
    store: Store, tmp_path: Path
) -> None:
    first = write_json(tmp_path / "a.json", [conversation(n) for n in range(3)])
    assert not imported(store, first).known
    copy = tmp_path / "b.json"
    copy.write_bytes(first.read_bytes())
    assert imported(store, copy).known
    other = imported(store, write_json(tmp_path / "c.json", [conversation(9)]))
    assert not other.known and other.committed.manifest.iteration == 1
    assert connect(store).sql("select count(*), count(distinct episode_id) from episodes").fetchall() == [
        (4, 4)
    ]


def test_a_run_that_plays_takes_no_imports(store: Store, tmp_path: Path) -> None:
    played = episode(run="log")
    commit_rows(store, "rollout", 0, {"episodes": [played], "transitions": transitions(played)}, run="log")
    with pytest.raises(StageFailed, match="--run NAME"):
        imported(store, write_json(tmp_path / "a.json", [conversation(0)]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with b''"),
        (b"PAR1", "try --format jsonl or parquet"),
        (b'[{"a": 1}, {"b"', "not valid JSON after record 0"),
        (b"[]", "it holds no record"),
        (b'[{"reward": 1}]', "1 bad_messages.*docs/logged.md"),
    ],
)
def test_a_file_without_anything_usable_adds_nothing(
    store: Store, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableLog, match=said):
        imported(store, path)
    assert not list(store.root.glob("log/rollout")) and not list(store.root.glob("log/.staging/*"))
    with pytest.raises(UnreadableLog, match="can't be read"):
        imported(store, tmp_path / "missing.json")


def test_the_three_formats_hold_the_same_records(tmp_path: Path) -> None:
    records = [conversation(n, reward=n / 4) for n in range(40)]
    array = write_json(tmp_path / "log.json", records)
    lines = tmp_path / "log.jsonl"
    lines.write_text("\n".join(json.dumps(record) for record in records))
    structs, text = tmp_path / "structs.parquet", tmp_path / "text.parquet"
    pl.DataFrame(records).write_parquet(structs)
    pl.DataFrame([{**r, "messages": json.dumps(r["messages"])} for r in records]).write_parquet(text)
    files: list[tuple[Path, LogFormat]] = [
        (array, "openai-chat"), (lines, "openai-chat"), (lines, "jsonl"), (structs, "parquet"), (text, "parquet"),
    ]  # fmt: skip
    for path, how in files:
        found = [(number, read(record).transitions) for number, record in read_records(path, how)]
        assert [(n, [json.loads(m) for s in steps for m in s.messages]) for n, steps in found] == [
            (n, r["messages"]) for n, r in enumerate(records)
        ], path
        assert [steps[-1].reward for _, steps in found] == [n / 4 for n in range(40)]


def test_sixty_real_conversations_survive_the_round_trip_exactly(store: Store) -> None:
    if not AIRLINE.exists():
        pytest.skip(f"no logged conversations at {AIRLINE}")
    records = json.loads(AIRLINE.read_text(encoding="utf-8"))
    done = imported(store, AIRLINE)
    assert (done.episodes, done.transitions, done.rejects) == (60, 851, {})
    table = done.committed.scan("transitions")
    episodes = done.committed.scan("episodes").sort("record").collect()
    for record, row in zip(records, episodes.iter_rows(named=True), strict=True):
        assert logged_messages(table, row["episode_id"]) == record["traj"]
        assert json.loads(row["record_fields"]) == {"info": record["info"], "trial": record["trial"]}
        assert (row["reward"], row["task_id"]) == (record["reward"], str(record["task_id"]))
    steps = table.collect()
    last = steps.filter(pl.col("step") == pl.col("step").max().over("episode_id"))
    assert last["done"].all() and steps["done"].sum() == 60 and not steps["truncated"].any()
    assert steps["action_valid"].all()
    query = """
        with said as (select unnest(messages) as message from transitions)
        select message ->> '$.tool_calls[0].function.name' as tool, count(*) as calls from said
        where tool is not null group by all order by calls desc limit 1
    """
    calls = connect(store).sql(query).fetchall()
    made = [c["function"]["name"] for r in records for m in r["traj"] for c in m.get("tool_calls") or []]
    assert calls == [max(((name, made.count(name)) for name in set(made)), key=lambda pair: pair[1])]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for name, size in (("small", 8 << 20), ("large", 24 << 20)):
        count = write_log(tmp_path / name, size)
        episodes, steps, peak = import_apart(tmp_path / name, tmp_path / f"data-{name}")
        assert (episodes, steps) == (count, 13 * count)
        peaks.append(peak)
    # Texts stand in several columns, so an import that held its rows would need 100 MiB more for these 16.
    assert peaks[1] - peaks[0] < 50
