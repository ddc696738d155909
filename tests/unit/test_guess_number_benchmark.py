"""The statistics of the run with a language model in every role, by hand."""

import pytest

from benchmarks.guess_number import likelier, mcnemar
from tasks.evaluation import wilson_interval


def test_mcnemar_doubles_the_tail_of_fair_coins() -> None:
    # One or none of six: (6 + 1) / 64, twice.
    assert mcnemar(1, 5) == mcnemar(5, 1) == pytest.approx(14 / 64)
    assert mcnemar(0, 4) == pytest.approx(2 / 16)
    assert mcnemar(3, 3) == mcnemar(0, 0) == 1.0


def test_wilson_interval_of_five_in_ten() -> None:
    # Centre 1/2; half width z sqrt(n/4 + z^2/4) / (n + z^2) = 1.96 sqrt(2.5 + .9604) / 13.8416.
    assert wilson_interval(5, 10) == pytest.approx((0.5 - 0.2634, 0.5 + 0.2634), abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0.0 and wilson_interval(10, 10)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("past", "guess", "hint"),
    [
        ([], 5, "higher"),  # 15 of 20 numbers
        ([], 16, "lower"),
        ([(10, "higher")], 12, "higher"),  # 8 of 11 to 20
        ([(10, "higher"), (16, "lower")], 14, "lower"),  # 11, 12 and 13 against 15
        ([(10, "higher")], 3, "higher"),  # ruled out itself
    ],
)
def test_the_likelier_hint_counts_the_numbers_left(
    past: list[tuple[int, str]], guess: int, hint: str
) -> None:
    assert likelier(past, guess) == hint
