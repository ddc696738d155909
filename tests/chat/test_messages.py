"""Messages in the forms that templates and servers take."""

import json

import pytest

from tasks.chat.messages import (
    Message,
    ToolCall,
    for_servers,
    for_templates,
    has_tools,
    merge_system,
    spell_tools,
)


def calling(arguments: object) -> Message:
    function = {"name": "look", "arguments": arguments}
    return Message(
        role="assistant",
        content="<think>hm</think>Dark.",
        tool_calls=[ToolCall(id="000000001", type="function", function=function)],  # type: ignore[typeddict-item]
    )


def arguments_of(message: Message) -> object:
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("given", [{"far": 3}, '{"far": 3}'])
def test_arguments_are_objects_for_templates_and_text_for_servers(given: object) -> None:
    assert arguments_of(for_templates(calling(given))) == {"far": 3}
    said = arguments_of(for_servers(calling(given)))
    assert isinstance(said, str) and json.loads(said) == {"far": 3}
    assert for_servers(calling(given))["content"] == "Dark.", "a hidden thought is in no later prompt"


def test_arguments_that_are_no_json_stay_as_they_were_written() -> None:
    assert (
        arguments_of(for_templates(calling("{far"))) == arguments_of(for_servers(calling("{far"))) == "{far"
    )


def test_a_message_without_calls_and_one_of_another_role_stay() -> None:
    asked = Message(role="user", content="<think>mine</think>")
    assert for_templates(asked) == for_servers(asked) == asked
    said = Message(role="assistant", content="Dark.")
    assert for_servers(said) == said


def test_a_system_message_without_a_question_becomes_one() -> None:
    system, question = Message(role="system", content="Walk."), Message(role="user", content="A wall.")
    assert merge_system([system]) == [Message(role="user", content="Walk.")]
    answer = Message(role="assistant", content="Left.")
    assert merge_system([system, answer]) == [Message(role="user", content="Walk."), answer]
    assert merge_system([system, question]) == [Message(role="user", content="Walk.\n\nA wall.")]
    assert merge_system([question]) == [question]
    assert merge_system([]) == []


def test_results_that_follow_one_another_are_spelled_as_one_message() -> None:
    results = [Message(role="tool", content=text, tool_call_id="000000001") for text in ("a lamp", "a door")]
    spelled = spell_tools([calling({"far": 3}), *results], ())
    assert [message["role"] for message in spelled] == ["assistant", "user"]
    assert spelled[1]["content"].index("a lamp") < spelled[1]["content"].index("a door")


def test_tools_are_on_offer_called_or_have_answered() -> None:
    assert has_tools([calling({})], ()) and has_tools([], ({"type": "function"},))
    assert has_tools([Message(role="tool", content="a lamp")], ())
    assert not has_tools([Message(role="user", content="A wall.")], ())
