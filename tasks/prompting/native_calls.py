"""Actions as native calls of tools: what a model of tool calls writes, and what the tables hold.

The tables hold one form whatever model acted: `Thought: ...` and `Action: ...`, where the action is a call as JSON,
{"name": ..., "arguments": {...}}, or else plain words. With `roles.policy.tool_calls: native` the policy sees and
writes calls in its family's own form. The words beside a call are its thought; words alone are an action.
"""

import json
from collections.abc import Iterator
from typing import Any

from storage.history import State
from tasks.chat.messages import Message, ToolCall
from tasks.chat.response_parser import BrokenCall, read_calls
from tasks.foreign_json import BadJson, read_json
from tasks.text.action_format import ActionFormat
from tasks.text.formats import read_action, write_action


def action_text(answer: str) -> str:
    """What a model wrote, as an action's text. One that can't be read, or calls several tools at once, stays as it is
    and so is no valid action."""
    try:
        words, calls = read_calls(answer)
    except BrokenCall:
        return answer
    if not calls:
        return write_action("", words) if words else answer
    if len(calls) > 1:
        return answer
    call = {"name": calls[0].name, "arguments": calls[0].arguments}
    return write_action(words, json.dumps(call, ensure_ascii=False))


def action_message(text: str, form: ActionFormat, number: int = 0) -> Message:
    """An action's text as the assistant's message.

    Args:
        text: as `action_text` gives it, or as the refiner wrote it.
        form: of the environment's actions.
        number: of the turn, for the call's id.
    """
    action = read_action(text, form)
    call = _call(action.action)
    if call is None:  # a thought beside plain words would be said aloud
        return Message(role="assistant", content=action.action)
    # Nine digits: some families take no other ids.
    calls = [ToolCall(id=f"{number:09d}", type="function", function=call)]
    return Message(role="assistant", content=action.thought, tool_calls=calls)


def native_chat(state: State, form: ActionFormat) -> Iterator[Message]:
    """The episode as a chat: what is seen after a call is the tool's answer, all else is the user's."""
    acted: Message | None = None
    for number, turn in enumerate(state.turns):
        yield _seen(turn.observation, acted)
        acted = action_message(turn.text, form, number)
        yield acted
    yield _seen(state.observation, acted)


def _seen(observation: str, after: Message | None) -> Message:
    """What was seen after an action: the tool's answer where that called one."""
    if after is None or not after.get("tool_calls"):
        return Message(role="user", content=observation)
    call = after["tool_calls"][0]
    return Message(role="tool", content=observation, tool_call_id=call["id"], name=call["function"]["name"])


def _call(action: str) -> Any:
    try:
        content = read_json(action)
    except BadJson:
        return None
    match content:
        case {"name": str(), "arguments": dict()}:
            return content
    return None
