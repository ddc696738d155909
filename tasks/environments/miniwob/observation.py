"""A page as text: the task, what was done, and a line for each element that can be seen."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_CHARS = 240  # of an element's text or value; the middle of a longer one is left out
OPTIONS = 30  # of a list
LINES = 80
OPTIONS_CUT = "and-more"
"""Flag of a list with more options than are shown."""

_PAST_CHARS = 40  # of an action that was taken
_LINE = re.compile(r'^([0-9]+) (\S+)(?: "([^"\n]*)")?(.*)$', re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')
_VALUE = re.compile(r'= "([^"]*)"')
_RGB = re.compile(r"rgb\((\d+), (\d+), (\d+)\)")
_COLOURS = {
    "000000": "black", "ffffff": "white", "ff0000": "red", "00ff00": "lime", "008000": "green", "0000ff": "blue",
    "ffff00": "yellow", "00ffff": "cyan", "ff00ff": "magenta", "808080": "grey", "800080": "purple",
    "ffa500": "orange", "ffc0cb": "pink", "a52a2a": "brown",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """An element, as an observation shows it.

    Attributes:
        ref: its number.
        role: button, link, textbox, textarea, checkbox, select, or the name of its tag.
        text: its own, or its label.
        value: what it holds.
        flags: checked, disabled, readonly, focused, scrolls-up, scrolls-down, and-more.
        options: of a list, those that are shown.
    """

    ref: int
    role: str
    text: str
    value: str
    flags: frozenset[str]
    options: tuple[str, ...]

    @property
    def enabled(self) -> bool:
        """A click reaches it."""
        return "disabled" not in self.flags

    @property
    def typed(self) -> bool:
        """It takes text."""
        return self.role in ("textbox", "textarea") and self.enabled and "readonly" not in self.flags


def write_observation(page: Mapping[str, Any], past: Sequence[str]) -> str:
    """What the policy sees.

    Args:
        page: what `nlac.look()` of elements.js returns.
        past: the actions so far, so that an observation holds the whole state.
    """
    lines = [f"Task: {page['task']}"]
    if past:
        lines.append("Done: " + "; ".join(_cut(" ".join(action.split()), _PAST_CHARS) for action in past))
    if page["done"]:
        late = ", the time is up" if page["reason"] == "timed out" else ""
        return "\n".join([*lines, f"The episode is over{late}. Reward {page['reward']:.2g}."])
    elements = page["elements"]
    lines += map(_line, elements[:LINES])
    if len(elements) > LINES:
        lines.append(f"and {len(elements) - LINES} more elements")
    return "\n".join(lines)


def _line(element: Mapping[str, Any]) -> str:
    """For instance `3 textbox "Name" = "Bob" focused`."""
    parts = [str(element["ref"]), element["role"]]
    if element["text"]:
        parts.append(f'"{_cut(element["text"], TEXT_CHARS)}"')
    if element.get("named"):
        parts.append(f".{element['named']}")
    if "value" in element:
        parts.append(f'= "{_cut(element["value"], TEXT_CHARS)}"')
    options = element.get("options", [])
    if options:
        parts += ["of", *(f'"{_cut(option, TEXT_CHARS)}"' for option in options[:OPTIONS])]
    if colour := _colour(element.get("colour", "none")):
        parts.append(colour)
    if "at" in element:
        parts.append("at {},{}".format(*element["at"]))
    parts += element["flags"]
    if len(options) > OPTIONS:
        parts.append(OPTIONS_CUT)
    return " ".join(parts)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"


def _colour(css: str) -> str:
    """A colour in a word or as #rrggbb; nothing for none, for a gradient, or where one sees through."""
    match = _RGB.fullmatch(css)
    if match is None:
        return ""
    code = "".join(f"{int(part):02x}" for part in match.groups())
    return _COLOURS.get(code, f"#{code}")


def read_task(observation: str) -> str:
    """The task's text."""
    return observation.partition("\n")[0].removeprefix("Task: ")


def read_lines(observation: str) -> Iterator[Line]:
    """The elements of an observation."""
    for ref, role, text, rest in _LINE.findall(observation):
        value = _VALUE.search(rest)
        options = _QUOTED.findall('"' + rest.partition(' of "')[2]) if role == "select" else []
        flags = frozenset(_QUOTED.sub("", rest).split())
        yield Line(int(ref), role, text, value[1] if value else "", flags, tuple(options))
