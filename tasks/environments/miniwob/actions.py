"""How an action on a page is written, and which actions an observation allows."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from tasks.environments.base import ActionFormat
from tasks.environments.miniwob.observation import OPTIONS_CUT, Line, read_lines, read_task

KEYS = (
    "Enter", "Tab", "Escape", "Space", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight",
    "Home", "End", "PageUp", "PageDown",
)  # fmt: skip
WAYS = ("up", "down")
LONGEST = 200  # characters of a typed text
_FORMS = (
    "(click) ([0-9]{1,3})",
    f"(type|select) ([0-9]{{1,3}}) ([^\\n]{{1,{LONGEST}}})",
    f"(scroll) ([0-9]{{1,3}}) ({'|'.join(WAYS)})",
    f"(press) ({'|'.join(KEYS)})",
)
_ACTION = re.compile("|".join(_FORMS))
_QUOTED = re.compile(r'"([^"]+)"')
_WORD = re.compile(r"[^\s,?]+")
_UNTYPED = re.compile("[\ud800-\udfff\ue000-\uf8ff]")
"""What no field takes as text: half a character, and the private characters that WebDriver takes for keys."""

ACTION_FORMAT = ActionFormat(
    "|".join(_FORMS).replace("(", "(?:"),
    "click N, type N TEXT (it replaces what the field holds), select N OPTION, scroll N up (or down), or press KEY; "
    f"N is the number of an element, KEY one of {', '.join(KEYS)}",
)


@dataclass(frozen=True)
class Action:
    """An action, read.

    Attributes:
        verb: click, type, select, scroll or press.
        ref: the element's number; None for a key.
        text: what is typed or selected, the direction, or the key.
    """

    verb: str
    ref: int | None
    text: str = ""


def read_action(action: str) -> Action | None:
    """An action from its text; None if it has no such form."""
    match = _ACTION.fullmatch(action)
    if match is None:
        return None
    verb, first, *rest = [part for part in match.groups() if part is not None]
    return Action(verb, None, first) if verb == "press" else Action(verb, int(first), *rest)


class LegalActions(Sequence[str]):
    """The actions that an observation allows. It contains more than it lists: a field takes any text, and it lists only
    texts that the task names, for a player at random.

    Args:
        observation: as the policy sees it.
    """

    def __init__(self, observation: str) -> None:
        self._lines = {line.ref: line for line in read_lines(observation)}
        self._listed = list(_listed(self._lines.values(), read_task(observation)))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._listed[index]

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, action: object) -> bool:
        read = read_action(action) if isinstance(action, str) else None
        if read is None or not self._lines:
            return False
        if read.ref is None:
            return True
        line = self._lines.get(read.ref)
        return line is not None and _allows(line, read)


def _allows(line: Line, action: Action) -> bool:
    match action.verb:
        case "click":
            return line.enabled
        case "type":
            return line.typed and _UNTYPED.search(action.text) is None
        case "select":
            return line.enabled and (action.text in line.options or OPTIONS_CUT in line.flags)
        case _:
            return f"scrolls-{action.text}" in line.flags


def _listed(lines: Collection[Line], task: str) -> Iterator[str]:
    numbers = (word for word in _WORD.findall(task) if any(map(str.isdigit, word)))
    texts = [text[:LONGEST] for text in dict.fromkeys(_QUOTED.findall(task) or numbers)]
    for line in lines:
        if line.enabled:
            yield f"click {line.ref}"
            yield from (f"select {line.ref} {option}" for option in line.options)
        if line.typed:
            yield from (f"type {line.ref} {text}" for text in texts)
        yield from (f"scroll {line.ref} {way}" for way in WAYS if f"scrolls-{way}" in line.flags)
    if any(line.typed for line in lines):
        yield "press Enter"
