"""Generalised advantages worked out by hand."""

import pytest

from tasks.improvement.generalised_advantages import Turn, generalised_advantages

TURNS = [Turn(0.0, 0.5), Turn(0.0, 0.4), Turn(1.0, 0.6)]


def test_an_ended_episode_has_no_value_behind_it() -> None:
    """delta = (0.9 * 0.4 - 0.5, 0.9 * 0.6 - 0.4, 1 - 0.6) = (-0.14, 0.14, 0.4); each takes 0.45 of the next A."""
    found = generalised_advantages(TURNS, discount=0.9, trace=0.5)
    assert found == pytest.approx([-0.14 + 0.45 * (0.14 + 0.45 * 0.4), 0.14 + 0.45 * 0.4, 0.4])


def test_an_episode_that_was_cut_goes_on_with_the_value_of_its_last_state() -> None:
    found = generalised_advantages([Turn(1.0, 0.6, next_value=0.2)], discount=0.9, trace=0.5)
    assert found == pytest.approx([1 + 0.9 * 0.2 - 0.6])


def test_the_trace_lies_between_one_step_and_the_whole_return() -> None:
    assert generalised_advantages(TURNS, 1.0, 1.0) == pytest.approx([1 - 0.5, 1 - 0.4, 1 - 0.6])
    assert generalised_advantages(TURNS, 1.0, 0.0) == pytest.approx([0.4 - 0.5, 0.6 - 0.4, 1 - 0.6])
