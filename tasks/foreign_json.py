"""Reads text of others: JSON that a model, a server or a user's file wrote, and text that may hold lone surrogates.

`json.loads` alone raises RecursionError on deep nesting and a plain ValueError on long numbers, and gives strings that
can't be encoded as UTF-8.
"""

import json
from typing import Any

DEEPEST = 100  # lists and objects within each other
_DECODER = json.JSONDecoder()


class BadJson(ValueError):
    """A text is not JSON, or more of it than is read; the message says where."""


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text, without lone surrogates.

    Raises:
        BadJson: it is not JSON, is nested more than DEEPEST levels deep, or holds a number of too many digits.
    """
    try:
        read = text.decode() if isinstance(text, bytes) else text
        value, end = read_json_at(read, len(read) - len(read.lstrip(_BLANK)))
    except UnicodeDecodeError as error:
        raise BadJson(f"no UTF-8 ({error.reason} at byte {error.start})") from error
    if rest := read[end:].strip(_BLANK):
        raise BadJson(f"something follows its end: {rest[:40]!r}")
    return value


_BLANK = " \t\n\r"


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a position, as `read_json` gives it, and where it ends.

    Raises:
        BadJson: as `read_json`.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} at character {error.pos}") from error
    except ValueError as error:  # Python's limit on digits
        raise BadJson("it holds a number of too many digits") from error
    except RecursionError:
        raise BadJson(f"it is nested more than {DEEPEST} levels deep") from None
    part = text[start:end]
    plain = part.isascii() and "\\u" not in part and part.count("[") + part.count("{") <= DEEPEST
    return (value if plain else _checked(value, DEEPEST)), end


def _checked(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, (list, dict)) and not levels:
        raise BadJson(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, list):
        return [_checked(part, levels - 1) for part in value]
    if isinstance(value, dict):
        return {whole_text(name): _checked(part, levels - 1) for name, part in value.items()}
    return value


def whole_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
