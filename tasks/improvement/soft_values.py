"""Soft values of sampled actions, with the entropy relative to the policy that sampled them.

Over n actions a_j ~ pi(.|s) with values Q_j and a temperature alpha, the distribution over them that maximises
sum_j w_j Q_j - alpha KL(w || uniform) is w = softmax(Q / alpha), and the maximum is alpha log mean_j exp(Q_j / alpha).
The samples stand for pi, so w reweights pi: pi'(a|s) is proportional to pi(a|s) exp(Q(s, a) / alpha).
"""

from collections.abc import Sequence

import numpy as np


def soft_value(values: Sequence[float], temperature: float) -> float:
    """alpha log mean_j exp(Q_j / alpha), between the mean and the largest of n values."""
    scaled = np.asarray(values, dtype=np.float64) / temperature
    return float(temperature * (np.logaddexp.reduce(scaled) - np.log(len(scaled))))


def soft_weights(values: Sequence[float], temperature: float) -> list[float]:
    """n softmax(Q / alpha) of n values: 1 on average."""
    scaled = np.asarray(values, dtype=np.float64) / temperature
    masses = np.exp(scaled - scaled.max())
    return [float(mass) for mass in len(masses) * masses / masses.sum()]
