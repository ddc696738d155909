"""Actions as text: tool calls and messages to the user, in two forms.

- `react`, the package's text form: every action is one JSON object, {"name": ..., "arguments": {...}}. A message to the
  user is a call of `respond`.
- `native`, for models with tool calls of their own: such an object, or OpenAI's form of it,
  {"function": {"name": ..., "arguments": "{...}"}}. Any other text is said to the user.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tasks.environments.tau_bench.action_formats import NATIVE_FORMAT, react_format
from tasks.foreign_json import BadJson, read_json

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
    """A text is not an action; the message tells the agent what was wrong."""


class Calls:
    """Parses and checks actions.

    Args:
        schemas: OpenAI function schemas of the tools, without `respond`.
        form: the form of actions.
        longest: most characters of a string argument under structured output, with form react; None for no limit.
    """

    def __init__(self, schemas: Sequence[Mapping[str, Any]], form: Form, longest: int | None = None) -> None:
        functions = [schema["function"] for schema in (*schemas, RESPOND_SCHEMA)]
        self._form = form
        self._parameters = {f["name"]: Draft202012Validator(_closed(f["parameters"])) for f in functions}
        self.format = react_format((*schemas, RESPOND_SCHEMA), longest) if form == "react" else NATIVE_FORMAT

    def read(self, text: str) -> Call:
        """Parse an action.

        Raises:
            Unreadable: the text is not an action.
        """
        try:
            content = read_json(text)
        except BadJson as error:
            if self._form == "native":
                return Call(RESPOND, {"content": text})
            raise Unreadable(f"the action is not valid JSON ({error})") from None
        if self._form == "native":
            return _native_call(content) or Call(RESPOND, {"content": text})
        call = _plain_call(content)
        if call is None:
            raise Unreadable('the action must be {"name": ..., "arguments": {...}}')
        return call

    def fault(self, call: Call) -> str | None:
        """The fault of a call, an unknown tool or arguments that do not fit its schema; None if it has none."""
        if call.name not in self._parameters:
            return f"there is no tool '{call.name}'"
        error = best_match(self._parameters[call.name].iter_errors(call.arguments))
        return f"arguments of {call.name}: {error.message}" if error else None


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """An action as text that both forms read."""
    return json.dumps({"name": name, "arguments": arguments})


def _plain_call(content: Any) -> Call | None:
    """The call in a decoded {"name", "arguments"}; None for anything else."""
    match content:
        case {"name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments)
    return None


def _native_call(content: Any) -> Call | None:
    """The same, also in OpenAI's form, whose arguments are JSON text."""
    match content:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            try:
                return _plain_call({"name": name, "arguments": read_json(arguments)})
            except BadJson:
                return None
        case {"function": dict(function)}:
            return _plain_call(function)
    return _plain_call(content)


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter schema that refuses unlisted parameters, as the tools' functions do."""
    return {**deepcopy(dict(parameters)), "additionalProperties": False}
