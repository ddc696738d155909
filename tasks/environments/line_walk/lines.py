"""The lines of the walk: dynamics, exact values, and the split by the pattern of goal and pits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from random import Random

import numpy as np

from tasks.environments.exact import Array, Dynamics
from tasks.environments.line_walk.text import ACTIONS, MOVES, PIT, observe, write_cell

Pattern = tuple[int, int]


@dataclass(frozen=True)
class Line:
    """One line. A state is a cell's number, from the left.

    Attributes:
        cells: length of the line.
        goal: the goal's cell.
        pits: the pits' cells, from the left, never next to each other, so a leap crosses any of them.
        moves: least moves to the goal from a start.
    """

    cells: int
    goal: int
    pits: tuple[int, int]
    moves: int

    @property
    def name(self) -> str:
        """Goal and pits, for task ids."""
        return f"goal{self.goal}pits{self.pits[0]},{self.pits[1]}"

    @property
    def pattern(self) -> Pattern:
        """Where the pits lie as seen from the goal; a line and its mirror image have the same pattern."""
        left, right = (pit - self.goal for pit in self.pits)
        return min((left, right), (-right, -left))

    @cached_property
    def states(self) -> tuple[int, ...]:
        """Every cell but the goal and the pits."""
        return tuple(cell for cell in range(self.cells) if cell not in (self.goal, *self.pits))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The states at least `moves` moves away from the goal."""
        halves = self.q_star(0.5).max(axis=1)  # 1/2 to the power of the least moves, less one
        return tuple(state for state in self.states if halves[state] <= 0.5 ** (self.moves - 1))

    def leads_to(self, state: int, action: int) -> int:
        """The cell that an action leads to; off the line, the own one."""
        cell = state + MOVES[action]
        return cell if 0 <= cell < self.cells else state

    def place(self, cell: int) -> str:
        """What is at a cell: the goal, a pit, or the cell's name."""
        return PIT if cell in self.pits else write_cell(cell - self.goal)

    def observation(self, state: int) -> str:
        """The observation of a state."""
        places = [self.place(self.leads_to(state, action)) for action in range(len(ACTIONS))]
        pits = [pit - self.goal for pit in self.pits]
        return observe(state - self.goal, places, pits, (-self.goal, self.cells - 1 - self.goal))

    def legal(self) -> Array:
        """1 where a move stays on the line, [cells, 4]."""
        moved = [[self.leads_to(s, a) != s for a in range(len(ACTIONS))] for s in range(self.cells)]
        return np.array(moved, dtype=np.float64)

    @cached_property
    def dynamics(self) -> Dynamics:
        """The dynamics as arrays; goal and pits lead nowhere."""
        onward, reward = (
            np.zeros((self.cells, len(ACTIONS), self.cells)),
            np.zeros((self.cells, len(ACTIONS))),
        )
        for state in self.states:
            for action in range(len(ACTIONS)):
                cell = self.leads_to(state, action)
                if cell == self.goal:
                    reward[state, action] = 1.0
                elif cell not in self.pits:
                    onward[state, action, cell] = 1.0
        return Dynamics(onward, reward)

    def q_star(self, gamma: float) -> Array:
        """Exact optimal action values, [cells, 4]; 0 in pits and in the goal."""
        return self.dynamics.q_star(gamma)


def split_lines(
    cells: int, moves: int, train_moves: int, held_out: int, seed: int
) -> Mapping[str, tuple[Line, ...]]:
    """All lines with a start, by split. Every pattern is in one split.

    Args:
        cells: length of a line.
        moves: least moves to the goal from a held-out start.
        train_moves: least moves to the goal from a start of train.
        held_out: patterns of eval, and of validation; the rest are of train.
        seed: of the draw of patterns.

    Raises:
        ValueError: a split is empty.
    """
    every = [
        Line(cells, goal, (left, right), moves)
        for goal in range(cells)
        for left, right in combinations([cell for cell in range(cells) if cell != goal], 2)
        if right - left > 1
    ]
    patterns = sorted({line.pattern for line in every})
    Random(seed).shuffle(patterns)
    ends = {"eval": held_out, "validation": 2 * held_out, "train": len(patterns)}
    split_of = {
        pattern: next(split for split, end in ends.items() if number < end)
        for number, pattern in enumerate(patterns)
    }
    lines: dict[str, list[Line]] = {split: [] for split in ends}
    for line in every:
        split = split_of[line.pattern]
        of_split = replace(line, moves=train_moves) if split == "train" else line
        if of_split.starts:
            lines[split].append(of_split)
    for split, found in lines.items():
        if not found:
            raise ValueError(
                f"the split {split} is empty ({held_out} of {len(patterns)} patterns are held out for eval and as many "
                "for validation; a line needs a start far enough from the goal); raise cells, or lower held_out, moves "
                "or train_moves"
            )
    return {split: tuple(found) for split, found in lines.items()}
