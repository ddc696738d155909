"""The configuration and the iteration that a deployment's parameters mean."""

from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.deployments.dispatch import ChildFailed
from flows.deployments.iteration import iteration, training
from flows.deployments.parameters import resolve
from schemas.config import Config, ModelSection, ReplaySection
from schemas.load import load_config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.iterations import begin_iteration, finish_iteration


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def begun(store: Store, run: str, *, finished: bool) -> Config:
    """Iteration 0 of a run under a configuration that is not the default one."""
    model = ModelSection(dtype="float32")
    config = Config(run=run, model=model, seed=7, replay=ReplaySection(transitions=33))
    begin_iteration(store, config, 0)
    if finished:
        finish_iteration(store, run, 0)
    return config


def test_an_iteration_keeps_the_configuration_it_was_begun_with(store: Store) -> None:
    config = begun(store, "mine", finished=False)
    assert resolve(store, "mine", None, None, None, stage_alone=False) == (config, 0)
    assert resolve(store, "mine", None, 0, None, stage_alone=True) == (config, 0)
    changed, _ = resolve(store, "mine", None, 0, 8, stage_alone=True)
    assert changed == config.model_copy(update={"seed": 8})


def test_a_new_iteration_takes_the_last_one_s_unless_the_run_is_the_default_one(store: Store) -> None:
    config = begun(store, "mine", finished=True)
    assert resolve(store, "mine", None, None, None, stage_alone=False) == (config, 1)
    assert resolve(store, "mine", None, None, None, stage_alone=True) == (config, 0)
    default = load_config()
    begun(store, default.run, finished=True)
    assert resolve(store, None, None, None, None, stage_alone=False) == (default, 1)
    assert resolve(store, "other", None, None, None, stage_alone=False) == (
        default.model_copy(update={"run": "other"}),
        0,
    )


def test_a_named_configuration_wins_over_the_one_that_was_begun(store: Store, tmp_path: Path) -> None:
    begun(store, "mine", finished=False)
    (tmp_path / "own.yaml").write_text("run: mine\nseed: 3")
    chosen, number = resolve(store, None, str(tmp_path / "own.yaml"), None, None, stage_alone=False)
    assert (chosen.seed, number) == (3, 0) and chosen.replay == Config().replay


@pytest.mark.parametrize("deployment", [iteration, training])
def test_prefect_refuses_an_algorithm_that_the_registry_does_not_hold(deployment: Any) -> None:
    schema = parameter_schema(deployment.fn).model_dump()
    assert schema["properties"]["algorithm"]["enum"] == [*ALGORITHMS, None]
    given = {"iterations": 1} if deployment is training else {}
    validate({**given, "algorithm": "nlql"}, schema, raise_on_error=True)
    with pytest.raises(ValidationError, match="'sarsa' is not one of"):
        validate({**given, "algorithm": "sarsa"}, schema, raise_on_error=True)


def test_a_parent_s_state_names_the_child_that_failed_and_why() -> None:
    reason = (
        "Flow run encountered an exception: StageFailed: no critique is usable;\nsee table critiques "
        + "x " * 99
    )
    state = ChildFailed("critique-trial-0: all of it", "critique", reason).state
    assert state.is_failed() and state.message == "critique-trial-0: all of it"
    assert state.name is not None and len(state.name) < 200
    assert state.name.startswith(
        "Failed at critique: StageFailed: no critique is usable; see table critiques"
    )
