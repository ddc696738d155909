"""Stopping at the evaluation peak."""

from collections.abc import Callable

import pytest

from schemas.config import Config
from schemas.rows import Evaluation
from storage.store import Store
from tasks.pipeline.early_stopping import should_stop, stop_reason
from tests.support.committed import commit_rows


@pytest.mark.parametrize(
    ("rates", "patience", "stops"),
    [
        ([], 1, False),
        ([0.2], 1, False),
        ([0.2, 0.5, 0.4], 1, True),
        ([0.2, 0.5, 0.4], 2, False),
        ([0.2, 0.5, 0.4, 0.5], 2, True),  # as good is not better
        ([0.2, 0.5, 0.4, 0.6], 2, False),
        ([0.9, 0.1, 0.2, 0.3], 3, True),  # better than the last, not than the best
        ([0.9, 0.1, 0.2, 0.3], None, False),
        ([0.0, None, None], 2, True),
        ([None, 0.0], 1, False),
    ],
)
def test_training_stops_after_evaluations_without_a_better_one_than_the_best(
    rates: list[float | None], patience: int | None, stops: bool
) -> None:
    assert should_stop(rates, patience) is stops


def test_the_reason_names_the_best_iteration_and_only_evaluated_ones_count(
    make_config: Callable[..., Config], store: Store
) -> None:
    for iteration, rate in ((0, 0.25), (2, 0.5), (4, 0.25), (6, 0.5)):
        row = Evaluation(
            run="trial", iteration=iteration, policy_version="p", environment="e", episodes=4, failed_episodes=0,
            successes=round(4 * rate), success_rate=rate,
        )  # fmt: skip
        commit_rows(store, "evaluation", iteration, {"evaluations": [row]}, run="trial")
    patient = make_config(evaluation={"patience": 2})
    assert stop_reason(store, patient, 0) is None and stop_reason(store, patient, 6) is None
    reason = stop_reason(store, patient, 7)
    assert reason and "before iteration 7" in reason and "iteration 2 holds the best policy" in reason
    assert stop_reason(store, make_config(), 7) is None
