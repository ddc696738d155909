"""PPO through its stages: values, advantages over turns, a value head that learns, and a run that goes on."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from storage.sql.views import connect
from storage.store import Committed, Store
from tasks.algorithms.ppo import PPO
from tasks.improvement.generalised_advantages import Turn, generalised_advantages
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.runner import StageResult
from tasks.runtime.stage import StageFailed
from tasks.training import trainer
from tasks.training.records import TrainingError
from tests.support.arms import Arms, play_arms
from tests.support.iterations import Iterate


@pytest.fixture
def arms(make_config: Callable[..., Config], byte_checkpoint: Path) -> Arms:
    return partial(play_arms, make_config, byte_checkpoint, "ppo")


def stages(results: Sequence[StageResult]) -> dict[str, Committed]:
    return {result.committed.manifest.stage: result.committed for result in results}


@pytest.mark.slow
def test_a_two_armed_bandit_is_solved_and_its_value_known(arms: Arms, store: Store, iterate: Iterate) -> None:
    config = arms(policy_gradient={"value_clip": None})
    check_config(config, store.root)
    made = [stages(iterate(config)) for _ in range(9)]
    paid = [one["rollout"].manifest.metrics["mean_reward"] for one in made]
    assert paid[0] < 0.5 and min(paid[-2:]) >= 0.9, paid
    valued = [one["values"].manifest.metrics["mean_value"] for one in made]
    assert valued[0] == 0.0 and valued[-1] == pytest.approx(paid[-1], abs=0.25), valued


@pytest.mark.slow
def test_advantages_are_the_gae_of_the_values_and_the_head_goes_from_stage_to_stage(
    arms: Arms, store: Store, iterate: Iterate, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"discount": 0.9, "trace": 0.8, "divide_by_std": False}
    # Of three turns two are played: every episode is cut, and goes on with the value of its last state.
    config = arms(turns=3, rollout={"repeats": 2, "max_steps": 2}, policy_gradient=settings)
    first = stages(iterate(config))
    assert tuple(first) == PPO.stages[:-1] and all(decide(store, config, stage, 0).reuse for stage in first)

    take_step = trainer.take_step

    def dies(*arguments: Any, **more: Any) -> Any:
        raise TrainingError("killed")

    monkeypatch.setattr(trainer, "take_step", dies)
    with pytest.raises(StageFailed, match="killed"):
        iterate(config)
    monkeypatch.setattr(trainer, "take_step", take_step)
    results = iterate(config)
    assert [result.reused for result in results] == [True, True, True, False]
    second = stages(results)
    values = second["values"].scan("values").collect()
    joined = second["rollout"].scan("transitions").collect().join(values, on="transition_id").sort("step")
    assert joined["value"].abs().max() > 0 and joined["truncated"].sum() == 8  # type: ignore[operator]
    assert joined.filter(pl.col("next_value").is_null() == pl.col("truncated")).is_empty()
    rated = second["advantages"].scan("advantages").collect()
    for (episode,), turns in joined.group_by("episode_id"):
        played = [Turn(*row) for row in turns.select("reward", "value", "next_value").iter_rows()]
        found = rated.filter(episode_id=episode).sort("transition_id")
        assert found["advantage"].to_list() == pytest.approx(generalised_advantages(played, 0.9, 0.8))
        assert found["return_estimate"].to_list() == pytest.approx(
            [a + turn.value for a, turn in zip(found["advantage"], played, strict=True)]
        )
    assert set(rated["kind"]) == {"gae"} and set(rated["scale"]) == {1.0}
    steps = second["policy-distillation"].scan("training_steps").collect()
    expected = ((rated["baseline"] - rated["return_estimate"]) ** 2).mean() / 2  # type: ignore[operator]
    assert steps["value_loss"][0] == pytest.approx(expected, rel=1e-3), "all rows are in the first batch"
    inputs = second["policy-distillation"].manifest.fingerprint_inputs.inputs
    assert "policy-distillation@00000/value_head.pt" in inputs
    query = "select count(*) from values_ join transitions using (transition_id)"
    assert connect(store).sql(query.replace("values_", '"values"')).fetchall() == [(32,)]
