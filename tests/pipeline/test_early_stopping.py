"""Stopping at the peak of the validation figures."""

from collections.abc import Callable, Sequence

import pytest

from schemas.config import Config
from schemas.load import ConfigError
from schemas.rows import Split
from storage.store import Store
from tasks.environments.base import Task
from tasks.environments.frozen_lake import FrozenLake
from tasks.pipeline.checks import check_config
from tasks.pipeline.early_stopping import should_stop, stop_reason
from tests.support.committed import commit_rows
from tests.support.rows import evaluation


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


def test_the_reason_names_the_best_iteration_and_only_validated_ones_count(
    make_config: Callable[..., Config], store: Store
) -> None:
    for iteration, successes in ((0, 2), (2, 5), (4, 2), (6, 5)):
        reported = evaluation(
            "p", iteration, iteration=iteration
        )  # better every time, and not to be chosen by
        chosen_by = evaluation("p", successes, iteration=iteration, split="validation")
        commit_rows(store, "evaluation", iteration, {"evaluations": [reported, chosen_by]})
    patient = make_config(evaluation={"patience": 2})
    assert stop_reason(store, patient, 0) is None and stop_reason(store, patient, 6) is None
    reason = stop_reason(store, patient, 7)
    assert reason and "before iteration 7" in reason and "iteration 2 holds the best policy" in reason
    assert stop_reason(store, make_config(), 7) is None


def test_an_evaluation_with_too_many_failed_episodes_is_no_peak(
    make_config: Callable[..., Config], store: Store
) -> None:
    for iteration, (successes, failed) in enumerate([(3, 0), (10, 1), (4, 0)]):
        rows = [evaluation("p", successes, iteration=iteration, split="validation", failed=failed)]
        commit_rows(store, "evaluation", iteration, {"evaluations": rows})
    assert stop_reason(store, make_config(evaluation={"patience": 1}), 3) is None


def test_evaluations_without_validation_figures_stop_nothing(
    make_config: Callable[..., Config], store: Store
) -> None:
    for iteration, successes in enumerate((9, 1, 0)):
        commit_rows(
            store, "evaluation", iteration, {"evaluations": [evaluation("p", successes, iteration=iteration)]}
        )
    assert stop_reason(store, make_config(evaluation={"patience": 1}), 3) is None


def test_patience_without_validation_tasks_is_refused(
    make_config: Callable[..., Config], store: Store
) -> None:
    game = {"name": "tests.support.tool_game:ToolGame", "options": {}}  # nine training tasks
    with pytest.raises(
        ConfigError, match=r"evaluation.patience: tool_game has no validation tasks .* fewer than 10"
    ):
        check_config(make_config(environment=game, evaluation={"patience": 1}), store.root)
    with pytest.raises(
        ConfigError, match=r"evaluation.validation_episodes: tool_game has no validation tasks"
    ):
        check_config(make_config(environment=game, evaluation={"validation_episodes": 1}), store.root)
    check_config(make_config(environment=game), store.root)
    with pytest.raises(ValueError, match=r"patience: .* validation_episodes is 0"):
        make_config(evaluation={"patience": 1, "validation_episodes": 0})


class Peeking(FrozenLake):
    """Its validation tasks are its evaluation tasks."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return super().tasks("train" if split == "train" else "eval")


def test_validating_on_evaluation_tasks_is_refused(make_config: Callable[..., Config], store: Store) -> None:
    lake = {"name": "tests.pipeline.test_early_stopping:Peeking", "options": {"maps": 2}}
    with pytest.raises(ConfigError, match="a task is in both splits validation and eval: eval/map"):
        check_config(make_config(environment=lake, evaluation={"patience": 1}), store.root)
