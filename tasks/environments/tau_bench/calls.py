"""Actions: how a tool call or a message to the user is written, and read.

Two forms. `react`, the package's text form: every action is one JSON object, {"name": ..., "arguments": {...}}, a
message to the user being a call of `respond`. `native`, that of models with tool calls of their own: such an object, or
the same as OpenAI writes it, {"function": {"name": ..., "arguments": "{...}"}}; anything else is said to the user.
"""

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tasks.environments.base import ActionFormat

Form = Literal["react", "native"]
RESPOND: Final = "respond"
RESPOND_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": RESPOND,
        "description": "Say something to the user, who then answers.",
        "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string", "description": "What to say."}},
            "required": ["content"],
        },
    },
}


@dataclass(frozen=True)
class Call:
    """One action: a tool with its arguments, or `respond` with `content`."""

    name: str
    arguments: dict[str, Any]


class Unreadable(Exception):
    """A text is no action; the message tells the agent what was wrong."""


class Calls:
    """Reads and checks actions.

    Args:
        schemas: OpenAI function schemas of the tools, without `respond`.
        form: how actions are written.
        longest: react: most characters of a text among the arguments; None: any number.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]], form: Form, longest: int | None = None) -> None:
        functions = [schema["function"] for schema in (*schemas, RESPOND_SCHEMA)]
        self._form = form
        self._bound = f", no text in it longer than {longest} characters" if longest else ""
        self._parameters = {f["name"]: Draft202012Validator(_closed(f["parameters"])) for f in functions}
        self.format = _react_format(self._parameters, longest) if form == "react" else _NATIVE_FORMAT

    def read(self, text: str) -> Call:
        """The action that a text is.

        Raises:
            Unreadable: it is none.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            if self._form == "native":
                return Call(RESPOND, {"content": text})
            raise Unreadable(f"the action is not valid JSON ({error})") from None
        if self._form == "native":
            return _native_call(content) or Call(RESPOND, {"content": text})
        call = _plain_call(content)
        known = call is not None and call.name in self._parameters  # `fault` has a better word on others
        if call is None or (known and not re.fullmatch(self.format.regex, text)):
            raise Unreadable(
                'the action must be {"name": ..., "arguments": {...}} and nothing else' + self._bound
            )
        return call

    def fault(self, call: Call) -> str | None:
        """What is wrong with a call: no such tool, or arguments that do not fit its schema; None: nothing."""
        if call.name not in self._parameters:
            return f"there is no tool '{call.name}'"
        error = best_match(self._parameters[call.name].iter_errors(call.arguments))
        return f"arguments of {call.name}: {error.message}" if error else None


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """An action as text, in either form."""
    return json.dumps({"name": name, "arguments": arguments})


def _plain_call(content: Any) -> Call | None:
    """A decoded {"name", "arguments"}; None: it is something else."""
    match content:
        case {"name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments)
    return None


def _native_call(content: Any) -> Call | None:
    """The same, also in OpenAI's form, whose arguments are a JSON text."""
    match content:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            try:
                return _plain_call({"name": name, "arguments": json.loads(arguments)})
            except json.JSONDecodeError:
                return None
        case {"function": dict(function)}:
            return _plain_call(function)
    return _plain_call(content)


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter schema that takes nothing it does not list, as the tools' functions do."""
    return {**deepcopy(dict(parameters)), "additionalProperties": False}


def _react_format(names: Iterable[str], longest: int | None) -> ActionFormat:
    """A JSON object with a known tool's name, as deep as the tools' arguments go: lists of objects. Spaces are bounded,
    or a small model held to it might write nothing else."""
    space = r"[ \n]{0,20}"
    times = "*" if longest is None else f"{{0,{longest}}}"
    text = rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}}){times}"'
    number = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

    def separated(item: str) -> str:
        return f"{space}(?:{item}{space}(?:,{space}{item}{space})*)?"

    def braced(value: str) -> str:
        return rf"\{{{separated(f'{_KEY}{space}:{space}{value}')}\}}"

    value = f"(?:{text}|{number}|true|false|null)"
    for _ in range(2):
        value = rf"(?:{value}|\[{separated(value)}\]|{braced(value)})"
    name = f'"(?:{"|".join(names)})"'
    return ActionFormat(
        rf'\{{{space}"name"{space}:{space}{name}{space},{space}"arguments"{space}:{space}{braced(value)}{space}\}}',
        'one tool call as JSON, {"name": "<tool>", "arguments": {<its arguments>}}; to speak to the user, call '
        f'"{RESPOND}" with the argument "content"',
    )


_KEY = '"[A-Za-z0-9_]{1,40}"'
_NATIVE_FORMAT = ActionFormat(
    r"[\s\S]+",
    'either one tool call as JSON, {"name": "<tool>", "arguments": {<its arguments>}}, or plain text, which is said to '
    "the user",
)
