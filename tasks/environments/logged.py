"""The environment of logged conversations: it can't be played, and an action is valid if it parses.

The format of an action lives here as well, so import, prompt and validity check share one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, EpisodeFailed, Step, Task
from tasks.foreign_json import BadJson, read_json, read_json_at
from tasks.text.formats import read_action, write_action

NAME = "logged"
RESPOND = "respond"
"""The call that speaks to the user; its argument is `content`."""

_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})'
_PLAIN = "-?[0-9][0-9.eE+-]{0,30}|true|false|null"
_BEGUN = re.compile(rf'\{{"name": "{_CHARACTER}*", "arguments": \{{')
_ARGUMENT = re.compile(rf'"{_CHARACTER}*": ')
_SCALAR = re.compile(rf'"{_CHARACTER}*"|{_PLAIN}')


def call_format(longest: int | None = None) -> ActionFormat:
    """The format of one call or a list of calls: JSON on one line, spaced as by `json.dumps`.

    The expression allows any text within lists and objects, which keeps it short, so it may be matched in exponentially
    many ways: structured output is held to it, and `is_action` reads.

    Args:
        longest: most characters of a text, list or object in a call; None for no limit.
    """
    times = "*" if longest is None else f"{{0,{longest}}}"
    text = rf'"{_CHARACTER}{times}"'
    value = rf"(?:{text}|{_PLAIN}|\[[^\n]{times}\]|\{{[^\n]{times}\}})"
    argument = f"{text}: {value}"
    call = rf'\{{"name": {text}, "arguments": \{{(?:{argument}(?:, {argument})*)?\}}\}}'
    return ActionFormat(
        rf"(?:{call}|\[{call}(?:, {call})*\])",
        'one call as JSON on one line, {"name": ..., "arguments": {...}}: a tool with its arguments, or '
        f'{RESPOND} with the argument "content", which is said to the user; several tools at once as a list of calls',
        reads=r"[\[{][^\n]*[\]}]",
    )


FORMAT = call_format()


class Logged:
    """The environment of a run that trains on imported episodes (`rollout: none`).

    Args:
        longest: most characters of a text, list or object in a call that the policy writes, for a small model that does
            not end one by itself; None for no limit. Logged actions may be longer.
    """

    name = NAME
    instructions = (
        "You are an agent that helps a user by the instructions that stand first in the conversation. In each turn you "
        "either call a tool or speak to the user."
    )
    templates: Mapping[str, Path] = {}
    replayable = False
    markov = False
    unplayable = "environment logged stands for conversations that were imported: it can't be played"

    def __init__(self, longest: int | None = None) -> None:
        self.action_format = call_format(longest) if longest is not None else FORMAT

    def tasks(self, split: Split) -> Sequence[Task]:
        """None: the episodes bring their own."""
        return ()

    async def reset(self, task: Task) -> str:
        raise EpisodeFailed(self.unplayable)

    async def step(self, action: str) -> Step:
        raise EpisodeFailed(self.unplayable)

    def accepts(self, action: str) -> bool:
        """Whether an action parses as a call or a list of calls."""
        return is_action(action)

    def validate(self) -> list[str]:
        """Nothing to check."""
        return []


def is_action(text: str) -> bool:
    """Whether a text is a call or a list of calls in the form of FORMAT, in time linear in its length."""
    try:
        read = read_json(text)
    except BadJson:
        return False
    calls = read if isinstance(read, list) else [read]
    if not calls or not all(map(_is_call, calls)) or "\n" in text:
        return False
    if read is not calls:
        return _end_of_call(text, 0) == len(text)
    end: int | None = 1
    for number in range(len(calls)):
        if end is None or (number and not text.startswith(", ", end)):
            return False
        end = _end_of_call(text, end + 2 * (number > 0))
    return end == len(text) - 1


def _end_of_call(text: str, start: int) -> int | None:
    """The end of a call within valid JSON on one line; None where its parts are spaced otherwise."""
    begun = _BEGUN.match(text, start)
    if begun is None:
        return None
    end = begun.end()
    while (argument := _ARGUMENT.match(text, end)) is not None:
        if text[argument.end()] in "[{":
            _, end = read_json_at(text, argument.end())
        elif (scalar := _SCALAR.match(text, argument.end())) is not None:
            end = scalar.end()
        else:
            return None
        if not text.startswith(", ", end):
            break
        end += 2
    return end + 2 if text.startswith("}}", end) else None


def _is_call(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "arguments"}
        and isinstance(value["name"], str)
        and isinstance(value["arguments"], dict)
    )


def action_text(content: str, calls: Sequence[tuple[str, str]]) -> str:
    """An agent's message as the text of an action.

    With calls, the content is the thought. Without calls, content that already is an action stays as it is, and any
    other content is said to the user.

    Args:
        content: the message's text; may be empty.
        calls: name and arguments (JSON text) of each tool call.
    """
    if calls:
        written = [_write(name, arguments) for name, arguments in calls]
        return write_action(content.strip(), written[0] if len(written) == 1 else f"[{', '.join(written)}]")
    said = read_action(content, FORMAT)
    if said.valid and is_action(said.action):
        return content
    return write_action("", _write(RESPOND, json.dumps({"content": content}, ensure_ascii=False)))


def _write(name: str, arguments: str) -> str:
    try:
        read: Any = read_json(arguments)
    except BadJson:
        read = arguments  # kept as text, so the action does not parse
    return json.dumps({"name": name, "arguments": read}, ensure_ascii=False)
