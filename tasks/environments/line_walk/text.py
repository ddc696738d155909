"""The walk as text: observations from which a step is copied, not computed, and a small grammar for futures.

An observation names the agent's cell, what each move leads to, the pits, and both ends of the line. A cell is named by
its distance from the goal, with a sign for the side. A move off the line leads back to the own cell:

    -3: < -4 << -5 > pit >> -1. pits -2 +2. ends -5 +3

A description repeats the move and what it leads to, then says how the episode ends from there:

    >> goal | > pit | >> -1, goal in N | >> -1, pit in N | >> -1, unclear

N counts the moves after the described one, from 1, so a goal is worth gamma^N. Every move is one token of SmolLM2, a
cell two (three from ten cells on), a pit or the goal one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tasks.environments import forecast
from tasks.environments.forecast import GOAL, LONGEST, UNCLEAR, Forecast

ACTIONS = ("<", "<<", ">", ">>")
MOVES = (-1, -2, 1, 2)  # cells
PIT = "pit"
_DIGITS = r"\d{1,9}"  # Python refuses to read thousands of them as a number
_CELL = rf"[-+]{_DIGITS}"
_PLACE = rf"(?:{_CELL}|{GOAL}|{PIT})"
_OBSERVATION = re.compile(
    rf"(?P<at>{_CELL}): < ({_PLACE}) << ({_PLACE}) > ({_PLACE}) >> ({_PLACE})\. "
    rf"pits {_CELL} {_CELL}\. ends {_PLACE} {_PLACE}"
)
_DESCRIPTION = re.compile(
    rf"(?P<action>{'|'.join(ACTIONS)}) (?:(?P<now>{GOAL}|{PIT})|"
    rf"(?P<cell>{_CELL}), (?:{UNCLEAR}|(?P<later>{GOAL}|{PIT}) in (?P<n>{_DIGITS})))"
)


def write_cell(offset: int) -> str:
    """A cell's name: its distance from the goal, with a sign."""
    return f"{offset:+d}" if offset else GOAL


@dataclass(frozen=True)
class Seen:
    """An observation, parsed.

    Attributes:
        at: the name of the agent's cell.
        leads_to: where each of ACTIONS leads: a cell's name, GOAL or PIT.
    """

    at: str
    leads_to: tuple[str, ...]

    @property
    def legal(self) -> tuple[str, ...]:
        """The moves that stay on the line."""
        return tuple(a for a, place in zip(ACTIONS, self.leads_to, strict=True) if place != self.at)

    @property
    def distance(self) -> int:
        """The least moves to the goal, ignoring pits."""
        return -(-abs(int(self.at)) // 2)


def observe(at: int, leads_to: Sequence[str], pits: Sequence[int], ends: Sequence[int]) -> str:
    """An observation.

    Args:
        at: offset of the agent's cell from the goal.
        leads_to: where each of ACTIONS leads.
        pits: offsets of the pits, from the left.
        ends: offsets of the first and the last cell.
    """
    moves = " ".join(f"{action} {place}" for action, place in zip(ACTIONS, leads_to, strict=True))
    left, right = (" ".join(map(write_cell, pair)) for pair in (pits, ends))
    return f"{write_cell(at)}: {moves}. pits {left}. ends {right}"


@lru_cache(maxsize=1 << 14)
def read_observation(text: str) -> Seen:
    """Read an observation.

    Raises:
        ValueError: the text is not an observation.
    """
    found = _OBSERVATION.fullmatch(text)
    if found is None:
        raise ValueError(f"not an observation of the line walk: {text[:80]!r}")
    return Seen(found["at"], found.groups()[1:])


@dataclass(frozen=True)
class Foreseen(Forecast):
    """A description, parsed.

    Attributes:
        action: the described move.
        cell: the name of the cell that it leads to; None if it ends the episode.
    """

    action: str
    cell: str | None

    def __str__(self) -> str:
        if self.cell is None:
            return f"{self.action} {self.outcome}"
        ending = UNCLEAR if self.steps is None else f"{self.outcome} in {self.steps - 1}"
        return f"{self.action} {self.cell}, {ending}"


def read_description(text: str) -> Foreseen | None:
    """Parse a description; None if it does not follow the grammar."""
    found = _DESCRIPTION.fullmatch(text)
    if found is None:
        return None
    if found["now"]:
        return Foreseen(found["now"], 1, found["action"], None)
    if not found["later"]:
        return Foreseen(UNCLEAR, None, found["action"], found["cell"])
    steps = int(found["n"]) + 1
    return Foreseen(found["later"], steps, found["action"], found["cell"]) if 2 <= steps <= LONGEST else None


def read_future(text: str) -> Forecast | None:
    """The ending of a future, predicted (a description) or played (a transcript); None if it is neither."""
    played = forecast.read_played(text, failure=PIT)
    return played[0] if played else read_description(text)


def well_formed(description: str, action: str) -> bool:
    """Whether a description follows the grammar and describes this move."""
    read = read_description(description)
    return read is not None and read.action == action


def after(action: str, place: str, later: Forecast | None) -> Foreseen:
    """The future of a move.

    Args:
        action: the move.
        place: where it leads: a cell's name, GOAL or PIT.
        later: the future from that cell; None if there is none, or if it can't be read.
    """
    if place in (GOAL, PIT):
        return Foreseen(place, 1, action, None)
    earlier = later.one_step_earlier() if later else Forecast(UNCLEAR, None)
    return Foreseen(earlier.outcome, earlier.steps, action, place)


def mean_value(futures: Sequence[str], gamma: float) -> float:
    """The mean value of futures, predicted or played; one that can't be read is worth 0."""
    return forecast.mean_value([read_future(text) for text in futures], gamma)
