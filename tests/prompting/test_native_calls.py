"""What a model wrote with its family's tools, as an action's text and as a message of the episode."""

import json

from storage.history import State, Turn
from tasks.prompting.native_calls import action_message, action_text, native_chat
from tasks.text.action_format import ActionFormat

FORM = ActionFormat(r"[\s\S]+", "a call as JSON, or words")
CALL = {"name": "look", "arguments": {"far": 3}}
WRITTEN = f"<tool_call>{json.dumps(CALL)}</tool_call>"


def test_one_call_is_an_action_and_its_words_the_thought() -> None:
    assert action_text(f"Dark.{WRITTEN}") == f"Thought: Dark.\nAction: {json.dumps(CALL)}"


def test_words_alone_are_the_action() -> None:
    assert action_text("Hello?").endswith("Action: Hello?")


def test_what_can_not_be_read_or_calls_twice_stays_and_is_no_action() -> None:
    for answer in ("<tool_call>{broken</tool_call>", WRITTEN * 2, ""):
        assert action_text(answer) == answer


def test_what_is_seen_after_a_call_is_the_tools_answer_and_all_else_the_users() -> None:
    call, words = action_text(f"Dark.{WRITTEN}"), action_text("Hello?")
    chat = list(native_chat(State((Turn("A wall.", call), Turn("a lamp", words)), "Yes?"), FORM))
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "assistant", "user"]
    assert chat[2]["tool_call_id"] == chat[1]["tool_calls"][0]["id"] == "000000000"
    assert chat[1]["content"] == "Dark." and chat[3]["content"] == "Hello?"


def test_json_that_is_no_call_is_said_as_words() -> None:
    message = action_message('Thought: hm\nAction: {"name": 3}', FORM)
    assert message == {"role": "assistant", "content": '{"name": 3}'}
