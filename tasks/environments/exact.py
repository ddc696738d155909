"""Exact values and measures of a small Markov decision process, as functions of arrays.

`probabilities`, `predicted` and `exact` are [states, actions]. Rows of several worlds may be stacked, except where a
function takes a `Dynamics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
TIE = 1e-9  # exact values nearer than this are equal


@dataclass(frozen=True)
class Dynamics:
    """What an action leads to.

    Attributes:
        onward: [states, actions, states], the probability of the next state with the episode still running, so a row
            sums to less than 1 if the episode may end.
        reward: [states, actions], the expected reward, which is the probability that this step reaches the goal.
    """

    onward: Array
    reward: Array

    def q_star(self, gamma: float) -> Array:
        """Exact optimal action values by value iteration, [states, actions]; 0 where the episode has ended."""
        values = self.reward
        while True:
            better: Array = self.reward + gamma * self.onward @ values.max(axis=1)
            if np.abs(better - values).max() < 1e-12:
                return better
            values = better

    def success_probability(self, start: int, probabilities: Array, horizon: int) -> float:
        """Probability of reaching the goal within `horizon` actions, from the exact state distribution.

        Args:
            start: the first state.
            probabilities: of the actions in every state. The remainder of a row to 1 is the probability of a text that
                is not an action, after which the agent stays.
            horizon: number of actions.
        """
        idle = 1.0 - probabilities.sum(axis=1)
        where, reached = np.zeros(len(self.reward)), 0.0
        where[start] = 1.0
        for _ in range(horizon):
            acting = where[:, None] * probabilities
            reached += float((acting * self.reward).sum())
            where = np.einsum("sa,sax->x", acting, self.onward) + where * idle
        return reached


def optimal_share(probabilities: Array, exact: Array) -> float:
    """Share of states whose most probable action (the first of equals) has the greatest exact value."""
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
