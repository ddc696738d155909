"""What of tau_bench needs no package: reading actions, and a database whose records are copied when looked up."""

import hashlib
import json
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from schemas.config import EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.tau_bench import TauBench
from tasks.environments.tau_bench.calls import RESPOND, Call, Calls, Form, Unreadable
from tasks.environments.tau_bench.database import Snapshot
from tasks.environments.tau_bench.package import load_domain
from tasks.text.formats import read_action

CANCEL = {
    "type": "function",
    "function": {
        "name": "cancel",
        "parameters": {
            "type": "object",
            "properties": {
                "order": {"type": "string"},
                "items": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "n": {"type": "integer"},
                            "how": {"type": "string", "enum": ["a-b", "c d"]},
                        },
                        "required": ["n", "how"],
                    },
                },
                "share": {"type": "number"},
            },
            "required": ["order", "items", "share"],
        },
    },
}
ITEMS = [{"n": 2, "how": "a-b"}, {"n": -3, "how": "c d"}]
EXPECTED = Call("cancel", {"order": "#W1", "items": ITEMS, "share": 0.5})
GOOD = json.dumps({"name": "cancel", "arguments": EXPECTED.arguments})


def test_a_react_action_is_one_json_object_however_it_is_spaced() -> None:
    calls = Calls([CANCEL], "react")
    turned = {"arguments": {"share": 0.5, "items": ITEMS, "order": "#W1"}, "name": "cancel"}
    for text in (GOOD, json.dumps(json.loads(GOOD), indent=4), json.dumps(turned)):
        assert calls.read(text) == EXPECTED and calls.fault(EXPECTED) is None
        assert read_action(f"Action: {text}", calls.format).valid
    assert re.fullmatch(calls.format.regex, GOOD)
    said = r'{"name": "respond", "arguments": {"content": "It costs \"10\" {euros}, ok?"}}'
    assert calls.read(said) == Call(RESPOND, {"content": 'It costs "10" {euros}, ok?'})


def test_a_native_call_is_read_in_openais_form_too_and_other_text_is_said_to_the_user() -> None:
    calls = Calls([CANCEL], "native")
    for arguments in (EXPECTED.arguments, json.dumps(EXPECTED.arguments)):
        assert calls.read(json.dumps({"function": {"name": "cancel", "arguments": arguments}})) == EXPECTED
    broken = json.dumps({"function": {"name": "cancel", "arguments": "{"}})
    assert calls.read(broken) == Call(RESPOND, {"content": broken})


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.from_regex(Calls([CANCEL], "react").format.regex, fullmatch=True))
def test_whatever_structured_output_may_write_is_a_call_that_fits(text: str) -> None:
    calls = Calls([CANCEL], "react")
    assert calls.fault(calls.read(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not valid JSON"),
        (GOOD + " now", "not valid JSON"),
        ('{"name": "cancel", "arguments": {"order": "#W1",}}', "not valid JSON"),
        ('{"name": "cancel", "arguments": {"order": "#W1" "items": []}}', "not valid JSON"),
        ('["cancel"]', "must be"),
        ('{"name": "cancel"}', "must be"),
        ('{"function": {"name": "cancel", "arguments": "{}"}}', "must be"),
    ],
)
def test_a_react_action_that_is_something_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        Calls([CANCEL], "react").read(text)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call("refund", {}), "no tool 'refund'"),
        (Call("cancel", {}), "is a required property"),
        (Call("cancel", {**EXPECTED.arguments, "order": 3}), "3 is not of type 'string'"),
        (Call("cancel", {**EXPECTED.arguments, "why": "x"}), "'why' was unexpected"),
        (Call(RESPOND, {"content": None}), "None is not of type 'string'"),
    ],
)
def test_the_fault_of_a_call_is_named(call: Call, said: str) -> None:
    assert said in (Calls([CANCEL], "react").fault(call) or "")


def test_structured_output_can_be_held_to_short_texts() -> None:
    form = Calls([CANCEL], "react", longest=3).format
    assert re.fullmatch(form.regex, '{"name": "respond", "arguments": {"content": "yes"}}')
    assert not re.fullmatch(form.regex, '{"name": "respond", "arguments": {"content": "okay"}}')


def test_a_schema_without_a_known_expression_is_refused() -> None:
    loose = {
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
    }
    with pytest.raises(ValueError, match="no expression is known"):
        Calls([loose], "react")


def test_a_native_action_is_a_call_in_either_form_and_else_is_said_to_the_user() -> None:
    calls = Calls([CANCEL], "native")
    assert calls.read(GOOD) == EXPECTED
    named = Call("cancel", {"order": "#W1"})
    openai = {"id": "c1", "type": "function", "function": {"name": "cancel", "arguments": '{"order": "#W1"}'}}
    assert calls.read(json.dumps(openai)) == named
    for text in (
        "Shall I?\nPlease say yes.",
        "42",
        '{"order": 1}',
        '{"function": {"name": "x", "arguments": "{"}}',
    ):
        assert calls.read(text) == Call(RESPOND, {"content": text})
        assert re.fullmatch(calls.format.regex, text)


@pytest.mark.parametrize("form", ["react", "native"])
def test_the_format_compiles_for_structured_output(form: Form) -> None:
    import xgrammar

    info = xgrammar.TokenizerInfo([chr(code) for code in range(128)], stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(info).compile_regex(Calls([CANCEL], form).format.regex)
    matcher = xgrammar.GrammarMatcher(grammar)
    assert matcher.accept_string(GOOD) and matcher.accept_token(0)


def plain(record: object) -> object:
    return tuple(sorted(record.items())) if isinstance(record, dict) else record


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_is_that_of_the_tables_written_as_tuples() -> None:
    snapshot = Snapshot({"orders": {"b": {"n": 1}, "a": {"n": 2}}, "users": {"u": 3}}, plain)
    first = digest("(('orders', (('a', (('n', 2),)), ('b', (('n', 1),)))), ('users', (('u', 3),)))")
    database = snapshot.lend()
    assert snapshot.digest(database) == first
    database["orders"]["b"]["n"] += 4
    database["orders"]["c"] = {"n": 9}
    assert snapshot.digest(database) == digest(
        "(('orders', (('a', (('n', 2),)), ('b', (('n', 5),)), ('c', (('n', 9),)))), ('users', (('u', 3),)))"
    )
    assert snapshot.digest(snapshot.lend()) == first and snapshot.intact()


def test_records_are_copied_when_looked_up_and_no_earlier() -> None:
    shared = {"orders": {"a": {"n": [1]}, "b": {"n": [2]}}}
    table, other = (Snapshot(shared, plain).lend()["orders"] for _ in range(2))
    assert [record["n"] for record in table.values()] == [[1], [2]] and not table.own
    table["a"]["n"].append(7)
    assert table["a"] == {"n": [1, 7]} and table.own == {"a"}
    assert table.get("b") is not shared["orders"]["b"] and table.get("z") is None
    assert other["a"] == {"n": [1]} and shared["orders"]["a"] == {"n": [1]}
    with pytest.raises(KeyError):
        table["z"]


def test_a_change_of_a_shared_record_is_noticed() -> None:
    snapshot = Snapshot({"orders": {"a": {"n": 1}}}, plain)
    table = snapshot.lend()["orders"]
    snapshot.digest({"orders": table})
    next(iter(table.values()))["n"] = 2
    assert not snapshot.intact()


def test_without_the_package_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load_domain.cache_clear()
    monkeypatch.setitem(sys.modules, "tau_bench", None)  # how Python marks what can't be imported
    with pytest.raises(
        UnusableEnvironment, match=r"environment\.name: .* is not installed.* pip install --no-deps"
    ):
        make_environment(EnvironmentSection.model_validate({"name": "tau_bench", "options": {}}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"domain": "bank"}, "domain is 'bank'; it must be one of retail, airline"),
        ({"domain": "airline", "train_split": "train"}, "train_split is 'train'; it must be one of test"),
        ({"train_split": "test"}, "training and evaluation both play split 'test'"),
        ({"eval_split": "train"}, "training and evaluation both play split 'train'"),
        ({"actions": "xml"}, "actions is 'xml'"),
        ({"user": "human"}, "user is 'human'"),
    ],
)
def test_options_that_can_not_be_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TauBench(**options)  # type: ignore[arg-type]
