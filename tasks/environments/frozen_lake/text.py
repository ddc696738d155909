"""The lake as text: observations of 14 words, and a small grammar for descriptions of predicted and played futures.

An observation names the cells of agent and goal, what lies left, down, right and up of the agent, and the holes,
padded so that all observations have the same length:

    agent r0c1 goal r3c3 . H . / r1c1 r2c3 none none none none

A description says where an action leads and how the episode ends from there:

    goal now | hole now | to rXcY then goal nN | to rXcY then hole nN | to rXcY then unclear

N counts the actions to the end, including the described one. `goal now` counts as 1, N is at least 2, and a goal is
worth gamma^(N-1), which is exactly Q(s, a) along the described path.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tasks.environments import forecast
from tasks.environments.forecast import LONGEST, UNCLEAR, Forecast

ACTIONS = ("left", "down", "right", "up")  # gymnasium's numbering, and the order of the neighbours
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
ICE, HOLE, GOAL, WALL = ".", "H", "G", "/"
NO_HOLE = "none"

Cell = tuple[int, int]
_DIGITS = r"\d{1,9}"  # Python refuses to read thousands of them as a number
_CELL = re.compile(rf"r({_DIGITS})c({_DIGITS})")
_DESCRIPTION = re.compile(
    rf"(?P<now>goal|hole) now|to (?P<cell>r{_DIGITS}c{_DIGITS}) then "
    rf"(?:unclear|(?P<later>goal|hole) n(?P<n>{_DIGITS}))"
)


def write_cell(cell: Cell) -> str:
    """A cell's word; row and column count from 0."""
    return f"r{cell[0]}c{cell[1]}"


@dataclass(frozen=True)
class Seen:
    """An observation, parsed. Neighbours are in the order of ACTIONS."""

    agent: Cell
    goal: Cell
    neighbours: tuple[str, ...]

    @property
    def legal(self) -> tuple[str, ...]:
        """The actions that do not run into the wall."""
        pairs = zip(ACTIONS, self.neighbours, strict=True)
        return tuple(action for action, neighbour in pairs if neighbour != WALL)

    @property
    def distance(self) -> int:
        """The Manhattan distance from agent to goal, ignoring holes."""
        return abs(self.agent[0] - self.goal[0]) + abs(self.agent[1] - self.goal[1])


def observe(rows: Sequence[str], agent: Cell, max_holes: int) -> str:
    """The observation of a map with the agent on one of its cells."""

    def seen(cell: Cell) -> str:
        inside = 0 <= cell[0] < len(rows) and 0 <= cell[1] < len(rows[0])
        return {"H": HOLE, "G": GOAL}.get(rows[cell[0]][cell[1]], ICE) if inside else WALL

    cells = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
    goal = next(cell for cell in cells if seen(cell) == GOAL)
    neighbours = [seen((agent[0] + down, agent[1] + right)) for down, right in MOVES]
    holes = [write_cell(cell) for cell in cells if seen(cell) == HOLE]
    filled = [*holes, *[NO_HOLE] * (max_holes - len(holes))]
    return " ".join(["agent", write_cell(agent), "goal", write_cell(goal), *neighbours, *filled])


@lru_cache(maxsize=1 << 14)
def read_observation(text: str) -> Seen:
    """Read an observation.

    Raises:
        ValueError: the text is not an observation.
    """
    words = text.split()
    cells = [_CELL.fullmatch(word) for word in words[1:4:2]]
    if len(words) < 8 or words[0] != "agent" or words[2] != "goal" or None in cells:
        raise ValueError(f"not an observation of the frozen lake: {text[:80]!r}")
    agent, goal = ((int(found[1]), int(found[2])) for found in cells if found)
    return Seen(agent, goal, tuple(words[4:8]))


@dataclass(frozen=True)
class Foreseen(Forecast):
    """A description, parsed.

    Attributes:
        cell: the word of the cell that the described action leads to; None if it ends the episode.
    """

    cell: str | None

    def __str__(self) -> str:
        if self.cell is None:
            return f"{self.outcome} now"
        ending = "unclear" if self.steps is None else f"{self.outcome} n{self.steps}"
        return f"to {self.cell} then {ending}"


def read_description(text: str) -> Foreseen | None:
    """Parse a description; None if it does not follow the grammar."""
    found = _DESCRIPTION.fullmatch(text)
    if found is None:
        return None
    if found["now"]:
        return Foreseen(found["now"], 1, None)
    if not found["later"]:
        return Foreseen("unclear", None, found["cell"])
    steps = int(found["n"])
    return Foreseen(found["later"], steps, found["cell"]) if 2 <= steps <= LONGEST else None


def read_played(text: str) -> Foreseen | None:
    """The description of a played future; None if the text is not a transcript of this lake."""
    found = forecast.read_played(text, failure="hole")
    if found is None:
        return None
    ending, first = found
    if ending.steps == 1:
        return Foreseen(ending.outcome, 1, None)
    try:
        return Foreseen(ending.outcome, ending.steps, write_cell(read_observation(first).agent))
    except ValueError:
        return None


def read_future(text: str) -> Foreseen | None:
    """Parse a future, predicted (a description) or played (a transcript); None if it is neither."""
    return read_description(text) or read_played(text)


def well_formed(description: str) -> bool:
    """Whether a description follows the grammar, with N between 2 and LONGEST."""
    return read_description(description) is not None


def one_step_earlier(cell: str, later: Foreseen | None) -> Foreseen:
    """The future of an action that leads to `cell`, given the future from there.

    Args:
        cell: the word of the cell.
        later: the future from `cell`; None if its text can't be parsed.
    """
    earlier = later.one_step_earlier() if later else Forecast(UNCLEAR, None)
    return Foreseen(earlier.outcome, earlier.steps, cell)


def mean_value(futures: Sequence[str], gamma: float) -> float:
    """The mean value of futures, predicted or played; one that can't be parsed is worth 0."""
    return forecast.mean_value([read_future(text) for text in futures], gamma)
