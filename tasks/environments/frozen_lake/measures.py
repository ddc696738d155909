"""Exact measures of learning on the frozen lake, as functions of arrays.

`probabilities`, `predicted` and `exact` are [states, 4], with actions in the order of `text.ACTIONS`. Rows of several
maps may be stacked, unless a function takes a Lake.
"""

from collections.abc import Sequence
from math import log

import numpy as np
import numpy.typing as npt

from tasks.environments.frozen_lake.maps import Lake
from tasks.environments.frozen_lake.text import LONGEST, Foreseen, write_cell

Array = npt.NDArray[np.float64]
TIE = 1e-9  # exact values nearer than this are equal


def success_probability(lake: Lake, probabilities: Array, horizon: int = 12) -> float:
    """Probability of reaching the goal from S within `horizon` actions, from the exact state distribution.

    Args:
        lake: a map.
        probabilities: of the actions in every state of the map. The remainder of a row to 1 is the probability of a
            text that is not an action, after which the agent stays.
        horizon: number of actions.
    """
    onward, reward = lake.matrices()
    idle = 1.0 - probabilities.sum(axis=1)
    where, reached = np.zeros(len(reward)), 0.0
    where[lake.reachable[0]] = 1.0
    for _ in range(horizon):
        acting = where[:, None] * probabilities
        reached += float((acting * reward).sum())
        where = np.einsum("sa,sax->x", acting, onward) + where * idle
    return reached


def optimal_share(probabilities: Array, exact: Array) -> float:
    """Share of states whose most probable action (the first of equals) has the greatest exact value. The rows are the
    states of `Lake.reachable`."""
    taken = np.take_along_axis(exact, probabilities.argmax(axis=1)[:, None], axis=1)[:, 0]
    return float((taken > exact.max(axis=1) - TIE).mean())


def rank_agreement(predicted: Array, exact: Array) -> float:
    """Share of pairs of actions of one state that the predicted values order as the exact values do.

    Pairs with equal exact values do not count; a predicted tie counts half. Chance is 0.5; nan without any pair.
    """
    first, second = np.triu_indices(exact.shape[1], k=1)
    truth, guess = exact[:, first] - exact[:, second], predicted[:, first] - predicted[:, second]
    counted = np.abs(truth) > TIE
    agreed = np.where(guess == 0, 0.5, np.sign(guess) == np.sign(truth))
    return float(agreed[counted].mean()) if counted.any() else float("nan")


def auroc(scores: Sequence[float] | Array, labels: Sequence[bool] | npt.NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, with ties as half (the Mann-Whitney statistic).

    Returns:
        nan without positives or without negatives.
    """
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]  # from 1; equal values share their mean rank
    above = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def optimal_actions(exact: Array) -> npt.NDArray[np.bool_]:
    """Whether each action is optimal, [states, actions]; ties are all optimal."""
    best: npt.NDArray[np.bool_] = exact > exact.max(axis=1, keepdims=True) - TIE
    return best


def exact_future(lake: Lake, state: int, action: int, exact: Array, gamma: float) -> str:
    """The true description of an action followed by optimal play, on a lake that is not slippery.

    It gives the best possible result of an evaluator, and labels from dynamic programming for a model.

    Args:
        lake: a map.
        state: number of the cell.
        action: number of the action.
        exact: `lake.q_star(gamma)`.
        gamma: discount, below 1.

    Raises:
        ValueError: the lake is slippery, so an action has more than one future.
    """
    outcomes = lake.effects[state][action]
    if len(outcomes) > 1:
        raise ValueError(
            f"map {lake.seed} is slippery: an action has no single future; set slippery to false"
        )
    effect = outcomes[0]
    if effect.done:
        return str(Foreseen("goal" if effect.reward > 0 else "hole", 1, None))
    cell, value = write_cell(lake.cell(effect.state)), exact[state, action]
    steps = 1 + round(log(value) / log(gamma)) if value > 0 else LONGEST + 1
    return str(Foreseen("goal", steps, cell) if steps <= LONGEST else Foreseen("unclear", None, cell))
