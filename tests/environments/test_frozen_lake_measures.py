"""Measures of learning on the frozen lake, on maps small enough to compute by hand."""

import numpy as np
import pytest

from tasks.environments.frozen_lake.maps import make_lake
from tasks.environments.frozen_lake.measures import (
    auroc,
    exact_future,
    optimal_actions,
    optimal_share,
    rank_agreement,
    success_probability,
)
from tasks.environments.frozen_lake.text import mean_value

LAKE = make_lake(0, ("SF", "HG"), False, 1)  # right, then down
UNIFORM = np.full((4, 4), 0.25)


def always(*actions: int) -> np.ndarray:
    return np.eye(4)[list(actions)]


def test_success_is_the_mass_that_reaches_the_goal_in_time() -> None:
    best = always(2, 1, 0, 0)
    assert success_probability(LAKE, best, horizon=2) == 1.0
    assert success_probability(LAKE, best, horizon=1) == 0.0
    # S: left and up stay, down is the hole, right goes on; r0c1: down is the goal, right and up stay
    assert success_probability(LAKE, UNIFORM, horizon=2) == pytest.approx(1 / 16)
    assert success_probability(LAKE, UNIFORM, horizon=3) == pytest.approx(1 / 16 + 1 / 4 * 1 / 2 * 1 / 4 * 2)


def test_text_that_is_no_action_stays_and_costs_time() -> None:
    half = 0.5 * always(2, 1, 0, 0)
    assert success_probability(LAKE, half, horizon=2) == pytest.approx(1 / 4)
    assert success_probability(LAKE, half, horizon=3) == pytest.approx(1 / 4 + 2 / 8)


def test_slips_are_part_of_the_exact_success() -> None:
    slippery = make_lake(0, ("SF", "HG"), True, 1)
    # right slips down (hole), right, up (stays); r0c1 down slips left (S), down (goal), right (stays)
    assert success_probability(slippery, always(2, 1, 0, 0), horizon=2) == pytest.approx(1 / 9)


def test_a_state_counts_as_optimal_by_its_most_probable_action() -> None:
    exact = np.array([[0.0, 0.5, 0.5, 0.1], [1.0, 0.8, 0.0, 0.0]])
    assert optimal_share(np.array([[0.1, 0.3, 0.4, 0.2], [0.2, 0.4, 0.4, 0.0]]), exact) == 0.5
    assert optimal_actions(exact).tolist() == [[False, True, True, False], [True, False, False, False]]


def test_rank_skips_exact_ties_and_halves_predicted_ones() -> None:
    exact = np.array([[0.0, 0.0, 0.5, 1.0]])  # five pairs that differ
    assert rank_agreement(exact, exact) == 1.0
    assert rank_agreement(-exact, exact) == 0.0
    assert rank_agreement(np.zeros((1, 4)), exact) == 0.5
    # (0,2) tied, (0,3) right, (1,2) wrong, (1,3) tied, (2,3) right
    assert rank_agreement(np.array([[0.2, 0.7, 0.2, 0.7]]), exact) == pytest.approx(
        (0.5 + 1 + 0 + 0.5 + 1) / 5
    )
    assert np.isnan(rank_agreement(exact, np.zeros((1, 4))))


def test_auroc_by_counting_pairs() -> None:
    assert auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert auroc([1.0, 1.0, 0.0], [True, False, False]) == 0.75  # a tie and a win
    assert auroc([0.0, 0.0], [True, False]) == 0.5
    assert np.isnan(auroc([0.3, 0.4], [True, True]))


def test_futures_are_worth_their_mean() -> None:
    groups = [["goal now", "hole now"], ["to r1c1 then goal n3", "nonsense"], ["to r1c1 then unclear"]]
    assert [mean_value(group, 0.8) for group in groups] == pytest.approx([0.5, 0.32, 0.0])


def test_exact_futures_state_what_dynamic_programming_knows() -> None:
    exact = LAKE.q_star(0.8)
    told = [[exact_future(LAKE, state, action, exact, 0.8) for action in range(4)] for state in (0, 1)]
    assert told == [
        ["to r0c0 then goal n3", "hole now", "to r0c1 then goal n2", "to r0c0 then goal n3"],
        ["to r0c0 then goal n3", "goal now", "to r0c1 then goal n2", "to r0c1 then goal n2"],
    ]
    values = [mean_value([description], 0.8) for row in told for description in row]
    assert values == pytest.approx(exact[:2].ravel())
    with pytest.raises(ValueError, match="map 0 is slippery"):
        exact_future(make_lake(0, ("SF", "HG"), True, 1), 0, 0, exact, 0.8)
