"""The interval of a success rate, and pass^k, by hand."""

import pytest

from tasks.measures.success import pass_hat, wilson_interval
from tests.support.rows import episode


def test_wilson_interval_of_five_in_ten() -> None:
    # Centre 1/2; half width z sqrt(n/4 + z^2/4) / (n + z^2) = 1.96 sqrt(2.5 + .9604) / 13.8416.
    assert wilson_interval(5, 10) == pytest.approx((0.5 - 0.2634, 0.5 + 0.2634), abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0.0 and wilson_interval(10, 10)[1] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)


def test_pass_hat_is_the_chance_that_k_plays_of_a_task_all_succeed() -> None:
    # task a: 2 of 4 plays succeed; task b: 3 of 3
    won = {"a": [True, False, True, False], "b": [True, True, True]}
    plays = [episode(task_id=task, success=one) for task, ones in won.items() for one in ones]
    # pass^1 = (2/4 + 3/3) / 2; pass^2 = (C(2,2)/C(4,2) + 1) / 2; pass^3 = (0 + 1) / 2; b has no fourth play
    assert pass_hat(plays) == pytest.approx([0.75, (1 / 6 + 1) / 2, 0.5])
    assert pass_hat([episode(task_id=task) for task in "abc"]) is None
    assert pass_hat([]) is None
