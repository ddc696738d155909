"""Exact measures of learning on the line walk; those that need no line are in `tasks.environments.exact`.

`probabilities` are [cells, 4], with actions in the order of `text.ACTIONS`. The rows of goal and pits do not count. For
`optimal_share` and `rank_agreement`, stack the rows `[list(line.states)]` of any number of lines.
"""

from collections.abc import Sequence
from math import log

import numpy as np

from tasks.environments.exact import TIE, Array
from tasks.environments.exact import optimal_actions as optimal_actions
from tasks.environments.exact import optimal_share as optimal_share
from tasks.environments.exact import rank_agreement as rank_agreement
from tasks.environments.forecast import GOAL, LONGEST, UNCLEAR, Forecast
from tasks.environments.line_walk.lines import Line
from tasks.environments.line_walk.text import ACTIONS, after, well_formed


def success_probability(lines: Sequence[Line], probabilities: Sequence[Array], horizon: int = 8) -> float:
    """Probability of reaching the goal within `horizon` moves, the mean over all starts of the lines, which are the
    tasks of their split. From the exact state distribution.

    Args:
        lines: any lines.
        probabilities: of each line; see `Dynamics.success_probability`.
        horizon: number of moves.
    """
    reached = [
        line.dynamics.success_probability(start, table, horizon)
        for line, table in zip(lines, probabilities, strict=True)
        for start in line.starts
    ]
    return float(np.mean(reached))


def uniform_play(line: Line) -> Array:
    """The probabilities of uniform play over the legal moves, [cells, 4]."""
    legal = line.legal()
    uniform: Array = legal / legal.sum(axis=1, keepdims=True)
    return uniform


def best_actions(line: Line, state: int, gamma: float) -> tuple[str, ...]:
    """The optimal moves of a state."""
    values = line.q_star(gamma)[state]
    return tuple(action for action, value in zip(ACTIONS, values, strict=True) if value > values.max() - TIE)


def exact_future(line: Line, state: int, action: int, gamma: float) -> str:
    """The true description of a move followed by optimal play: a label from dynamic programming.

    Args:
        line: a line.
        state: number of the cell.
        action: number of the action.
        gamma: discount, below 1.
    """
    cell = line.leads_to(state, action)
    value = line.q_star(gamma)[cell].max()
    steps = 1 + round(log(value) / log(gamma)) if value > 0 else LONGEST
    later = Forecast(GOAL, steps) if steps < LONGEST else Forecast(UNCLEAR, None)
    return str(after(ACTIONS[action], line.place(cell), later))


def malformed_share(descriptions: Sequence[str], actions: Sequence[str]) -> float:
    """Share of descriptions that break the grammar or describe another move than the one they are of."""
    sound = [well_formed(text, action) for text, action in zip(descriptions, actions, strict=True)]
    return 1.0 - sum(sound) / len(sound)
