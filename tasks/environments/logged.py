"""Logged conversations in the place of an environment: nothing can be played, an action is valid if it parses.

Here too: how an agent's turn of a logged conversation is written as an action, so that what is imported, what the
policy is asked for and what is checked are one format.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, EpisodeFailed, Step, Task
from tasks.text.formats import read_action, write_action

NAME = "logged"
RESPOND = "respond"
"""Name of the call that speaks to the user; its argument is `content`."""


def call_format(longest: int | None = None) -> ActionFormat:
    """How a call is written, or several as a list: JSON as `json.dumps` spaces it, on one line. Values within lists and
    objects are left to `Logged.accepts`, so that the expression stays short.

    Args:
        longest: characters of a text, list or object in a call, at most.
    """
    times = "*" if longest is None else f"{{0,{longest}}}"
    text = rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}}){times}"'
    value = rf"(?:{text}|-?[0-9][0-9.eE+-]{{0,30}}|true|false|null|\[[^\n]{times}\]|\{{[^\n]{times}\}})"
    argument = f"{text}: {value}"
    call = rf'\{{"name": {text}, "arguments": \{{(?:{argument}(?:, {argument})*)?\}}\}}'
    return ActionFormat(
        rf"(?:{call}|\[{call}(?:, {call})*\])",
        'one call as JSON on one line, {"name": ..., "arguments": {...}}: a tool with its arguments, or '
        f'{RESPOND} with the argument "content", which is said to the user; several tools at once as a list of calls',
    )


FORMAT = call_format()


class Logged:
    """The stand-in for an environment in a run that trains on imported episodes (`rollout: none`).

    Args:
        longest: characters of a text, list or object in a call that the policy may write, at most; for a small model,
            which ends none by itself. Empty: any number. Logged actions may be longer.
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
        """None: episodes name their own."""
        return ()

    async def reset(self, task: Task) -> str:
        raise EpisodeFailed(self.unplayable)

    async def step(self, action: str) -> Step:
        raise EpisodeFailed(self.unplayable)

    def accepts(self, action: str) -> bool:
        """Whether an action parses: a call, or a list of calls."""
        try:
            read = json.loads(action)
        except ValueError:
            return False
        calls = read if isinstance(read, list) else [read]
        return bool(calls) and all(map(_is_call, calls)) and re.fullmatch(FORMAT.regex, action) is not None

    def validate(self) -> list[str]:
        """There is nothing that could be wrong."""
        return []


def _is_call(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "arguments"}
        and isinstance(value["name"], str)
        and isinstance(value["arguments"], dict)
    )


def action_text(content: str, calls: Sequence[tuple[str, str]]) -> str:
    """What an agent said and called, as the text of an action.

    With calls the content is the thought. Without, content that is an action in the format already stays as it is, and
    any other is said to the user.

    Args:
        content: what was said; may be empty.
        calls: name and arguments (JSON text) of each tool call.
    """
    if calls:
        written = [_write(name, arguments) for name, arguments in calls]
        return write_action(content.strip(), written[0] if len(written) == 1 else f"[{', '.join(written)}]")
    if read_action(content, FORMAT).valid:
        return content
    return write_action("", _write(RESPOND, json.dumps({"content": content}, ensure_ascii=False)))


def _write(name: str, arguments: str) -> str:
    try:
        read: Any = json.loads(arguments)
    except ValueError:
        read = arguments  # stays as it is, and so does not parse
    return json.dumps({"name": name, "arguments": read}, ensure_ascii=False)
