"""Soft values and weights of sampled actions, by hand."""

from math import log

import pytest

from tasks.improvement.soft_values import soft_value, soft_weights


def test_weights_and_value_of_two_actions_by_hand() -> None:
    """With alpha = 1 / ln 3 the values 1 and 0 have the masses 3 and 1."""
    alpha = 1 / log(3)
    assert soft_weights([1.0, 0.0], alpha) == pytest.approx([1.5, 0.5])
    assert soft_value([1.0, 0.0], alpha) == pytest.approx(log(2) / log(3))


def test_the_soft_value_is_the_weighted_mean_less_the_weights_divergence_from_the_samples() -> None:
    values, alpha = [0.3, -0.1, 0.9, 0.3], 0.4
    weights = soft_weights(values, alpha)
    assert sum(weights) == pytest.approx(4)
    expected = sum(w * (q - alpha * log(w)) for w, q in zip(weights, values, strict=True)) / 4
    assert soft_value(values, alpha) == pytest.approx(expected)


def test_equal_values_are_worth_themselves_and_a_small_temperature_takes_the_best() -> None:
    assert soft_value([0.25] * 3, 0.01) == pytest.approx(0.25)
    assert soft_weights([0.25] * 3, 0.01) == pytest.approx([1.0] * 3)
    assert soft_value([0.0, 1.0], 1e-6) == pytest.approx(1.0, abs=1e-5)
    assert soft_weights([0.0, 1.0], 1e-6) == pytest.approx([0.0, 2.0])
