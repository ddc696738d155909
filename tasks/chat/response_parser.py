"""Splits a model's response into its hidden chain of thought, its words, and its calls of tools.

Each model family marks calls of tools in its own way. The mark itself tells which way, so no setting is needed. A text
that is marked as a call but can't be read is reported as broken; nothing is guessed.
"""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from tasks.foreign_json import BadJson, read_json, read_json_at

_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_HERMES, _END_HERMES = "<tool_call>", "</tool_call>"
_MISTRAL, _MISTRAL_ARGS, _MISTRAL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_PYTHON = "<|python_tag|>"
LONGEST_PYTHON = 20_000
"""Characters of a call in Python's form. The time in which Python parses some texts grows with the square of theirs."""

CLOSING = dict(_REASONING)
"""The closing mark of each mark that opens a hidden chain of thought."""
MARKS = (
    *(m for pair in _REASONING for m in pair),
    _HERMES,
    _END_HERMES,
    _MISTRAL,
    _MISTRAL_ARGS,
    _MISTRAL_ID,
    _PYTHON,
)
"""Marks that stay in a completion's text even where they are special tokens."""

_CLOSED_HERMES = re.compile(rf"{_HERMES}(.*?)(?:{_END_HERMES}|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s*:')
_NAMED_MISTRAL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?\[ARGS\]\s*")


class BrokenCall(ValueError):
    """A call of a tool can't be read. The message gives the reason, for a row's `error`."""


@dataclass(frozen=True)
class Call:
    """A tool called by name, with its arguments."""

    name: str
    arguments: dict[str, Any]


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Split a completion into its hidden chain of thought and its answer.

    Args:
        text: the completion. Engines put an opening mark that the prompt held before it; a server may leave it out.

    Returns:
        (reasoning, answer); reasoning is None where there is none. A reasoning that was cut off by max_tokens leaves
        an empty answer.
    """
    for opening, closing in _REASONING:
        before, closed, after = text.partition(closing)
        if closed:
            return before.replace(opening, "", 1).strip(), after.strip()
        if text.lstrip().startswith(opening):
            return text.lstrip()[len(opening) :].strip(), ""
    return None, text


def read_calls(answer: str) -> tuple[str, tuple[Call, ...]]:
    """Split an answer into its words and its calls of tools.

    These forms are understood:
    - Hermes, Qwen and most later families: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    - Mistral: `[TOOL_CALLS]` before a JSON list, or before name`[ARGS]`{...}.
    - Llama 3: a JSON object with `parameters` as the whole answer or after `<|python_tag|>`, several separated by
      semicolons; after the tag also `name.call(key="value")`.

    Args:
        answer: a completion without its chain of thought, from a request that offered tools.

    Returns:
        (words, calls), both empty where there are none.

    Raises:
        BrokenCall: the answer is marked as a call, but can't be read.
    """
    if _HERMES in answer:
        words = answer.partition(_HERMES)[0].strip()
        return words, tuple(_call(_json(body)) for body in _CLOSED_HERMES.findall(answer))
    if _MISTRAL in answer:
        words, _, rest = answer.partition(_MISTRAL)
        return words.strip(), _mistral_calls(rest)
    if _PYTHON in answer:
        words, _, rest = answer.partition(_PYTHON)
        return words.strip(), _llama_calls(rest.strip())
    words = answer.strip()
    if words.startswith("{") and words.endswith("}") and _ARGUMENTS.search(words):
        try:
            return "", _llama_calls(words)
        except BrokenCall:
            return words, ()  # an unmarked object that is no call is an answer
    return words, ()


def _mistral_calls(text: str) -> tuple[Call, ...]:
    if _MISTRAL_ARGS not in text:
        listed = _json(text)
        return tuple(_call(item) for item in (listed if isinstance(listed, list) else [listed]))
    calls = []
    for part in text.split(_MISTRAL):
        named = _NAMED_MISTRAL.match(part)
        if named is None:
            raise BrokenCall(f"no name before {_MISTRAL_ARGS}: {part[:80]!r}")
        calls.append(_call({"name": named[1], "arguments": _json(part[named.end() :])}))
    return tuple(calls)


def _llama_calls(text: str) -> tuple[Call, ...]:
    if not text.startswith("{"):
        return (_python_call(text),)
    calls, at = [], 0
    while at < len(text):
        try:
            content, at = read_json_at(text, at)
        except BadJson as error:
            raise BrokenCall(f"no JSON ({error}): {text[at : at + 80]!r}") from error
        calls.append(_call(content))
        while at < len(text) and text[at] in "; \n":
            at += 1
    return tuple(calls)


def _python_call(text: str) -> Call:
    """`tool.call(key="value")`, Llama 3's form for its built-in tools."""
    if len(text) > LONGEST_PYTHON:
        raise BrokenCall(f"longer than {LONGEST_PYTHON} characters: {text[:80]!r}")
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and not call.args:
            named = call.func
            if isinstance(named, ast.Attribute) and named.attr == "call":
                named = named.value
            given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            # What JSON can't hold, bytes and sets among it, is no argument of a tool.
            return Call(ast.unparse(named), read_json(json.dumps(given, allow_nan=False)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BrokenCall(f"no call of a tool ({error}): {text[:80]!r}") from error
    raise BrokenCall(f"no call of a tool by named arguments: {text[:80]!r}")


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except BadJson as error:
        raise BrokenCall(f"no JSON ({error}): {text.strip()[:80]!r}") from error


def _call(content: Any) -> Call:
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise BrokenCall(f"a call needs a name: {json.dumps(content)[:80]}")
    arguments = content.get("arguments", content.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        raise BrokenCall(f"the arguments of {content['name']} are no object: {json.dumps(arguments)[:80]}")
    return Call(content["name"], arguments)
