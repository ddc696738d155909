"""The statistics of the run with a language model in every role, by hand."""

import pytest

from benchmarks.learning.guess_number import mcnemar
from storage.history import State, Turn
from tasks.environments.base import ActionFormat
from tasks.environments.guess_number import left_by_hints, likelier, possible_share


def test_mcnemar_doubles_the_tail_of_fair_coins() -> None:
    # One or none of six: (6 + 1) / 64, twice.
    assert mcnemar(1, 5) == mcnemar(5, 1) == pytest.approx(14 / 64)
    assert mcnemar(0, 4) == pytest.approx(2 / 16)
    assert mcnemar(3, 3) == mcnemar(0, 0) == 1.0


FORM = ActionFormat(regex=r"\[[0-9]+\]", description="a number in brackets")


def state(*played: tuple[int, str]) -> State:
    """After guesses and what the game said of each."""
    said = ["Guess!", *(f"The target number is {hint}." for _, hint in played)]
    turns = [
        Turn(seen, f"Thought: so.\nAction: [{guess}]") for seen, (guess, _) in zip(said, played, strict=False)
    ]
    return State(tuple(turns), said[-1])


@pytest.mark.parametrize(
    ("played", "guess", "hint"),
    [
        ([], 5, "higher"),  # 15 of 20 numbers
        ([], 16, "lower"),
        ([(10, "higher")], 12, "higher"),  # 8 of 11 to 20
        ([(10, "higher"), (16, "lower")], 14, "lower"),  # 11, 12 and 13 against 15
        ([(10, "higher")], 3, "higher"),  # ruled out itself
    ],
)
def test_the_likelier_hint_counts_the_numbers_left(
    played: list[tuple[int, str]], guess: int, hint: str
) -> None:
    assert likelier(left_by_hints(state(*played), FORM), guess) == hint


def test_a_guess_is_possible_if_no_hint_rules_it_out_and_it_was_not_tried() -> None:
    states = {"first": state(), "later": state((10, "higher"), (16, "lower"))}
    assert list(left_by_hints(states["later"], FORM)) == [11, 12, 13, 14, 15]
    actions = [("first", 20), ("later", 11), ("later", 16), ("later", 10), ("later", 4)]
    texts = [(identity, f"Thought: so.\nAction: [{guess}]") for identity, guess in actions]
    assert possible_share(states, texts, FORM) == 2 / 5
    assert possible_share(states, [("first", "no number")], FORM) == 0.0
