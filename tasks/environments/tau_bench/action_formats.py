"""Action formats for structured output: calls that fit the schema of a tool.

`calls` reads more than that: other white space, and arguments in another order.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tasks.text.action_format import ActionFormat, any_of

NATIVE_FORMAT: Final = ActionFormat(
    r"[\s\S]+",
    'either one tool call as JSON, {"name": "<tool>", "arguments": {<its arguments>}}, or plain text, which is said to '
    "the user",
)
_OBJECT = r"\{[\s\S]*\}"
_WHOLE = "-?(?:0|[1-9][0-9]{0,11})"


def react_format(schemas: Iterable[Mapping[str, Any]], longest: int | None = None) -> ActionFormat:
    """The format of one JSON object that calls one of the tools.

    Args:
        schemas: OpenAI function schemas. Supported JSON schema: strings, enumerations of strings, integers, numbers,
            arrays, and objects whose properties are all required.
        longest: most characters of a string; None for no limit.

    Raises:
        ValueError: a schema is not supported.
    """
    calls = "|".join(
        f'{json.dumps(f["name"])}, "arguments": {_value(f["parameters"], longest)}'
        for f in (schema["function"] for schema in schemas)
    )
    return ActionFormat(
        rf'\{{"name": (?:{calls})\}}',
        'one tool call as JSON, {"name": "<tool>", "arguments": {<its arguments>}}; to speak to the user, call '
        '"respond" with the argument "content"',
        reads=_OBJECT,
    )


def _value(schema: Mapping[str, Any], longest: int | None) -> str:
    """Regular expression of a schema's values, spaced as by `json.dumps`."""
    match schema:
        case {"enum": values}:
            return f"(?:{any_of(json.dumps(value) for value in values)})"
        case {"type": "string"}:
            times = "*" if longest is None else f"{{0,{longest}}}"
            return rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}}){times}"'
        case {"type": "integer"}:
            return _WHOLE
        case {"type": "number"}:
            return rf"{_WHOLE}(?:\.[0-9]{{1,6}})?"
        case {"type": "array", "items": items}:
            item = _value(items, longest)
            return rf"\[(?:{item}(?:, {item})*)?\]"
        case {"type": "object", "properties": dict(properties)} if set(schema.get("required", ())) == set(
            properties
        ):
            fields = (f"{json.dumps(name)}: {_value(inner, longest)}" for name, inner in properties.items())
            return rf"\{{{', '.join(fields)}\}}"
    raise ValueError(f"no expression is known for the JSON schema {dict(schema)}")
