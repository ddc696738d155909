"""Rules that solve some pages, from the observation alone: they check that what is seen and done is enough."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasks.environments.miniwob.observation import Line, read_lines, read_task

_QUOTED = re.compile(r'"([^"]+)"')
_SELECT = re.compile(r"Select (.+?) (?:from|and click)\b")
_SUM = re.compile(r"(-?[0-9]{1,3}) ([-+x]) (-?[0-9]{1,3}) =")
_NUMBER = re.compile(r"[0-9]+")
_TIME = re.compile(r"Enter ([0-9]{1,2}):([0-9]{2}) ([AP])M")
_DATE = re.compile(r"[0-9]{2}/[0-9]{2}/[0-9]{4}")
_SIGNS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "x": operator.mul}


@dataclass(frozen=True)
class _Page:
    task: str
    lines: Sequence[Line]
    last: str

    @property
    def quoted(self) -> list[str]:
        """What the task names in quotes."""
        return _QUOTED.findall(self.task)

    def click(self, holds: Callable[[Line], bool], number: int = 0) -> str:
        return f"click {[line for line in self.lines if holds(line)][number].ref}"

    def submit(self) -> str:
        return self.click(lambda line: line.role == "button", -1)

    def fill(self, *texts: str) -> str:
        """Type a text into each field in turn, then submit."""
        for line, text in zip((line for line in self.lines if line.typed), texts, strict=False):
            if line.value != text:
                return f"type {line.ref} {text}"
        return self.submit()


def solve(page: str, observation: str) -> str:
    """The next action on a page of `SOLUTIONS`."""
    done = [line for line in observation.splitlines()[:2] if line.startswith("Done: ")]
    last = done[0].rpartition("; ")[2].removeprefix("Done: ") if done else ""
    return SOLUTIONS[page](_Page(read_task(observation), list(read_lines(observation)), last))


def _named(page: _Page) -> str:
    return page.click(lambda line: line.text == page.quoted[0])


def _button(page: _Page) -> str:
    return page.click(lambda line: line.role == "button" and f" {line.text}." in page.task)


def _in_turn(page: _Page) -> str:
    return page.click(lambda line: line.text == ("TWO" if page.last else "ONE"))


def _wanted(page: _Page) -> list[str]:
    match = _SELECT.search(page.task)
    return match[1].split(", ") if match else []


def _check(page: _Page) -> str:
    for line in page.lines:
        if line.text in _wanted(page) and "checked" not in line.flags:
            return f"click {line.ref}"
    return page.submit()


def _choose(page: _Page) -> str:
    chooser = page.lines[0]
    missing = [option for option in _wanted(page) if option not in chooser.value.split(", ")]
    return f"select {chooser.ref} {missing[0]}" if missing else page.submit()


def _tabs(page: _Page) -> str:
    """The quoted text, or the tab after the one clicked last."""
    found = [line for line in page.lines if line.text == page.quoted[0]]
    if found:
        return f"click {found[0].ref}"
    tabs = [line.ref for line in page.lines if line.role in ("link", "h3")]
    seen = [ref for ref in tabs if page.last == f"click {ref}"]
    return f"click {tabs[tabs.index(seen[0]) + 1 if seen else 0]}"


def _expand(page: _Page) -> str:
    return page.submit() if page.last else page.click(lambda line: line.role == "h3")


def _compute(page: _Page) -> str:
    match = _SUM.search(page.lines[0].text)
    return page.fill(str(_SIGNS[match[2]](int(match[1]), int(match[3]))) if match else "0")


def _look_up(page: _Page) -> str:
    cells = [line.text for line in page.lines if line.role == "td"]
    table = dict(zip(cells[::2], cells[1::2], strict=False))
    asked = [line.text.rstrip(":") for line in page.lines if line.role == "label"]
    return page.fill(
        *(table[name] for name in asked or [page.task.partition(" of ")[2].partition(" into ")[0]])
    )


def _word(page: _Page) -> str:
    words = page.lines[0].text.split()
    match = _NUMBER.search(page.task)
    return page.fill(words[int(match[0]) - 1].strip(",.") if match else "")


def _date(page: _Page) -> str:
    field, match = page.lines[0], _DATE.search(page.task)
    return page.submit() if field.value or not match else f"type {field.ref} {match[0]}"


def _time(page: _Page) -> str:
    field, match = page.lines[0], _TIME.search(page.task)
    return (
        page.submit()
        if field.value or not match
        else f"type {field.ref} {int(match[1]):02d}:{match[2]}{match[3]}M"
    )


SOLUTIONS: Mapping[str, Callable[[_Page], str]] = {
    "click-test": _Page.submit,
    "click-test-2": _button,
    "click-test-transfer": _button,
    "click-button": lambda page: page.click(
        lambda line: line.role == "button" and line.text == page.quoted[0]
    ),
    "unicode-test": _named,
    "click-button-sequence": _in_turn,
    "click-link": _named,
    "click-option": _check,
    "click-checkboxes": _check,
    "click-checkboxes-large": _check,
    "click-checkboxes-transfer": _check,
    "choose-list": _choose,
    "click-scroll-list": _choose,
    "click-collapsible": _expand,
    "click-collapsible-2": _tabs,
    "click-tab-2": _tabs,
    "enter-text": lambda page: page.fill(page.quoted[0]),
    "enter-text-dynamic": lambda page: page.fill(page.quoted[0]),
    "enter-password": lambda page: page.fill(page.quoted[0], page.quoted[0]),
    "login-user": lambda page: page.fill(*page.quoted[:2]),
    "enter-date": _date,
    "enter-time": _time,
    "simple-arithmetic": _compute,
    "read-table": _look_up,
    "read-table-2": _look_up,
    "find-word": _word,
}
