"""Logged conversations in the place of an environment."""

import asyncio
import json
import re

import pytest

from schemas.config import EnvironmentSection
from tasks.environments import make_environment
from tasks.environments.base import EpisodeFailed, Task, Unplayable, tasks_by_id, would_accept
from tasks.environments.logged import FORMAT, Logged, action_text, call_format
from tasks.text.formats import read_action

CALL = {"name": "f", "arguments": {"a": 'x "y" \n ü', "b": [1, {"c": None}], "d": -1.5e3, "e": True, "g": {}}}


def accepts(action: str) -> bool:
    fits = re.fullmatch(FORMAT.regex, action) is not None
    assert Logged().accepts(action) <= fits, "what parses has the format"
    return Logged().accepts(action)


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_whatever_json_call_is_an_action(ensure_ascii: bool) -> None:
    one = json.dumps(CALL, ensure_ascii=ensure_ascii)
    assert accepts(one) and accepts(f"[{one}]") and accepts(f"[{one}, {one}]")
    assert accepts('{"name": "f", "arguments": {}}')


@pytest.mark.parametrize(
    "text",
    [
        "", "hello", "[]", "[1]", '{"name": "f"}', '{"name": "f", "arguments": "x"}', '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": {"a": [1, }}}', '{"name": "f", "arguments": {}, "more": 1}', '{"name": "f", "argu',
        '{"name": "f",\n"arguments": {}}',
    ],
)  # fmt: skip
def test_anything_else_is_none(text: str) -> None:
    assert not accepts(text)


@pytest.mark.parametrize(
    "text",
    ['{"name":"f", "arguments": {}}', '{"name": "f", "arguments": {"a":1}}', '{"name": "f", "arguments": {} }',
     '{"name": "f", "arguments": {"a": 1,"b": 2}}', '[{"name": "f", "arguments": {}},{"name": "f", "arguments": {}}]',
     '[{"name": "f", "arguments": {} }]', '{"arguments": {}, "name": "f"}', '{"name": "f", "arguments": {"a": NaN}}'],
)  # fmt: skip
def test_a_call_that_is_spaced_otherwise_is_no_action(text: str) -> None:
    assert not accepts(text)


def test_a_model_that_repeats_itself_costs_no_time() -> None:
    begun = '{"name": "f", "arguments": {' + '"a": [], ' * 20_000
    for action in (begun, f"{begun}]", f"[{begun}"):
        assert not read_action(f"Action: {action}", FORMAT).valid or not Logged().accepts(action)
        assert action_text(f"Action: {action}", []).startswith('Action: {"name": "respond"')


def test_a_text_may_be_bounded() -> None:
    def written(content: str) -> str:
        return json.dumps({"name": "respond", "arguments": {"content": content}})

    bounded = call_format(10).regex
    assert re.fullmatch(bounded, written("x" * 10)) and not re.fullmatch(bounded, written("x" * 11))
    assert (
        make_environment(EnvironmentSection(name="logged", options={"longest": 10})).action_format.regex
        == bounded
    )


def test_nothing_is_played_and_every_task_is_known() -> None:
    environment = make_environment(EnvironmentSection(name="logged", options={}))
    assert isinstance(environment, Unplayable)
    task = Task("any", "train", 0)
    assert tasks_by_id(environment, ["any"]) == {"any": task}
    for played in (environment.reset(task), environment.step("")):
        with pytest.raises(EpisodeFailed, match="can't be played"):
            asyncio.run(played)
    action = json.dumps(CALL)
    assert asyncio.run(would_accept(environment, task, ["before"], "seen", action))
    assert not asyncio.run(would_accept(environment, task, [], "seen", action[:-1]))
