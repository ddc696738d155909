"""Chat messages, and the functions that adapt them to chat templates without a system role or without tools.

`tasks.chat.templates` finds out which of these a tokenizer needs.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

from tasks.chat.response_parser import split_reasoning
from tasks.foreign_json import BadJson, read_json


class Function(TypedDict):
    """Which tool is called, and how. `arguments` as an object, or as the JSON text that OpenAI's servers write."""

    name: str
    arguments: dict[str, Any] | str


class ToolCall(TypedDict):
    """One call of a tool in an assistant's message."""

    id: str
    type: Literal["function"]
    function: Function


class Message(TypedDict):
    """One chat message, as chat templates and OpenAI-compatible servers take it. Roles: system, user, assistant,
    tool (the result of the call that `tool_call_id` names)."""

    role: str
    content: str
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


Tool = Mapping[str, Any]
"""A tool on offer, as an OpenAI function schema: {"type": "function", "function": {name, description, parameters}}."""


class RequestError(Exception):
    """One request that can't be answered; others are unharmed. Its row records the message as its `error`.

    Args:
        message: what was wrong.
        kind: counts it with others of its kind.
    """

    def __init__(self, message: str, kind: str = "refused") -> None:
        super().__init__(message)
        self.kind = kind


def has_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    """Whether tools are on offer, called, or have answered."""
    return bool(tools) or any(m["role"] == "tool" or m.get("tool_calls") for m in messages)


def for_templates(message: Message) -> Message:
    """A message in the form that all chat templates treat alike: without a hidden chain of thought, and with arguments
    of calls as objects. (Some templates leave out an earlier turn's reasoning, most print it; some quote arguments that
    are text once more.)"""
    if message["role"] != "assistant":
        return message
    changed = cast(Message, {**message, "content": split_reasoning(message["content"])[1]})
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_with_object(call) for call in calls]
    return changed


def for_servers(message: Message) -> Message:
    """A message in the form of OpenAI's interface: as for_templates, but with arguments of calls as JSON text."""
    message = for_templates(message)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_with_text(call) for call in calls]
    return message


def _with_text(call: ToolCall) -> ToolCall:
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return {
        **call,
        "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)},
    }


def _with_object(call: ToolCall) -> ToolCall:
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return call
    try:
        arguments = read_json(function["arguments"])
    except BadJson:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """Prepend a leading system message to the first user message, for templates without a system role."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    if not rest or rest[0]["role"] != "user":
        return [Message(role="user", content=system["content"]), *rest]
    merged = f"{system['content']}\n\n{rest[0]['content']}"
    return [Message(role="user", content=merged), *rest[1:]]


def spell_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Put tools, calls and results into the words of the system, the assistant and the user, for templates without
    tools. Calls take the most common form that `tasks.chat.response_parser` reads."""
    spelled: list[Message] = []
    answering = (
        False  # successive results become one message, because some templates require alternating roles
    )
    for message in messages:
        result = message["role"] == "tool"
        if result and answering:
            spelled[-1]["content"] += f"\n{_result(message)}"
        elif result:
            spelled.append(Message(role="user", content=_result(message)))
        else:
            calls = [spell_call(call["function"]) for call in message.get("tool_calls", ())]
            words = [message["content"]] if message["content"] else []
            spelled.append(Message(role=message["role"], content="\n".join([*words, *calls])))
        answering = result
    if tools:
        system, rest = (
            ([], spelled) if spelled[:1] and spelled[0]["role"] != "system" else (spelled[:1], spelled[1:])
        )
        offered = "\n\n".join([*(m["content"] for m in system), _offer(tools)])
        return [Message(role="system", content=offered), *rest]
    return spelled


def spell_call(function: Mapping[str, Any]) -> str:
    """One call as text."""
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _result(message: Message) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _offer(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    form = '<tool_call>\n{"name": the tool\'s name, "arguments": an object}\n</tool_call>'
    return (
        f"These tools can be called, each described by a JSON schema:\n{listed}\nTo call one, write\n{form}"
    )
