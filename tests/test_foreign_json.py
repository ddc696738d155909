"""JSON that others wrote: what is not read raises one exception, whatever is wrong with it."""

import json

import pytest

from tasks.foreign_json import DEEPEST, BadJson, read_json, read_json_at, whole_text


@pytest.mark.parametrize("value", [None, True, 3, -1.5e3, "ä 😀", [1, {"a": [None]}], {"": "x\ny"}])
def test_json_is_read_as_it_is(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        f"\n {json.dumps(value, indent=1)} \r\n",
    ):
        assert read_json(text) == value
        assert read_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 1000, "levels deep"),
        ("[" * 1_000_000, "levels deep"),
        ("[" * 101 + "]" * 101, "levels deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "levels deep"),
        ("9" * 4301, "too many digits"),
        ("", "Expecting value at character 0"),
        ("{'a': 1}", "at character 1"),
        ("[1] [2]", "follows its end"),
        ("\ufeff{}", "at character 0"),
        (b"\xff", "no UTF-8"),
    ],
)
def test_what_can_not_be_read_is_said_to_be_bad(text: str | bytes, fault: str) -> None:
    with pytest.raises(BadJson, match=fault):
        read_json(text)


def test_as_many_levels_are_read_as_are_promised() -> None:
    text = "[" * DEEPEST + "]" * DEEPEST
    assert json.dumps(read_json(text)) == text
    assert len(read_json(f"[{'[], ' * 1000}[]]")) == 1001, "lists beside each other are no levels"


def test_lone_surrogates_are_replaced_and_pairs_stay() -> None:
    assert read_json('{"\\ud83d": ["\\ude00x", "\\ud83d\\ude00"]}') == {"\ufffd": ["\ufffdx", "😀"]}
    assert whole_text("a\ud83db") == "a\ufffdb"
    assert whole_text("ä 😀") == "ä 😀"


def test_a_value_is_read_where_it_begins() -> None:
    assert read_json_at('x {"a": 1} y', 2) == ({"a": 1}, 10)
