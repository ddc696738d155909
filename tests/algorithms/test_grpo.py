"""GRPO through its stages: what is trained on is what was sampled, groups tell arms apart, and a killed run goes on."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import ConfigError
from storage.store import Committed, Store
from tasks.algorithms.grpo import GRPO
from tasks.export.rows import export_rows
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.plan import plan
from tasks.pipeline.runner import StageResult
from tasks.runtime.stage import StageFailed
from tasks.training import trainer
from tasks.training.records import TrainingError
from tests.support.arms import Arms, play_arms
from tests.support.iterations import Iterate


@pytest.fixture
def arms(make_config: Callable[..., Config], byte_checkpoint: Path) -> Arms:
    return partial(play_arms, make_config, byte_checkpoint, "grpo")


def stages(results: Sequence[StageResult]) -> dict[str, Committed]:
    return {result.committed.manifest.stage: result.committed for result in results}


@pytest.mark.slow
def test_a_two_armed_bandit_is_solved(arms: Arms, store: Store, iterate: Iterate) -> None:
    config = arms()
    check_config(config, store.root)
    paid = [stages(iterate(config))["rollout"].manifest.metrics["mean_reward"] for _ in range(8)]
    assert paid[0] < 0.5 and min(paid[-2:]) >= 0.9, paid


@pytest.mark.slow
def test_what_is_trained_on_is_what_was_sampled_under_the_prompt_it_was_sampled_under(
    arms: Arms, store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    config = arms(turns=3, max_tokens=4, evaluation={"every": 1})
    check_config(config, store.root)
    made = stages(iterate(config))
    assert tuple(made) == GRPO.stages and [row.stage for row in plan(config)] == list(made)
    assert all(decide(store, config, stage, 0).reuse for stage in made)
    rated = made["advantages"].scan("advantages").filter(status="ok").collect()
    of_episode = rated.group_by("episode_id").agg(pl.col("advantage").n_unique(), turns=pl.len())
    assert set(of_episode["advantage"]) == {1} and set(of_episode["turns"]) == {3}
    rows = made["policy-distillation"].scan("training_rows").collect()
    both = rows.join(
        made["rollout"].scan("transitions").collect(), left_on="source_id", right_on="transition_id"
    )
    assert both.height == rows.height > 0 and set(rows["source_id"]) == set(rated["transition_id"])
    assert set(rows["source_table"]) == {"transitions"}
    ends = set()
    for row in both.iter_rows(named=True):
        ended = row["end_token_id"] is not None
        assert ended == (row["generation"]["finish_reason"] == "stop")
        assert row["prompt_tokens"] == row["generation"]["prompt_tokens"]
        assert row["label_tokens"] == len(row["token_ids"]) + ended
        ends.add(ended)
    assert ends == {True, False}
    # Trainer and engine have the same weights: their orders of summation alone differ. Another token would be seen.
    first = made["policy-distillation"].scan("training_steps").collect().row(0, named=True)
    assert 0 < first["engine_gap_mean"] < first["engine_gap_max"] < 1e-4 and first["engine_k3"] < 1e-8
    assert first["clipped_share"] == 0 and first["old_kl"] == pytest.approx(0, abs=1e-6)
    exported = tmp_path / "rows.jsonl"
    export_rows(store, "trial", "policy-distillation", exported)
    advantages = {row["id"]: row["advantage"] for row in map(json.loads, exported.read_text().splitlines())}
    assert advantages == dict(rated.select("transition_id", "advantage").iter_rows())


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_old_probabilities_and_plays_nothing_again(
    arms: Arms, store: Store, iterate: Iterate, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = arms(trainer={"checkpoint_steps": 1})
    take_step, taken = trainer.take_step, list[int]()

    def dies_at_the_second(*arguments: Any, **more: Any) -> Any:
        if arguments[3] == 1:
            raise TrainingError("killed")
        return take_step(*arguments, **more)

    def counted(*arguments: Any, **more: Any) -> Any:
        taken.append(arguments[3])
        return take_step(*arguments, **more)

    monkeypatch.setattr(trainer, "take_step", dies_at_the_second)
    with pytest.raises(StageFailed, match="killed"):
        iterate(config)
    monkeypatch.setattr(trainer, "take_step", counted)
    results = iterate(config)
    assert [result.reused for result in results] == [True, True, False]
    steps = stages(results)["policy-distillation"].scan("training_steps").collect()
    assert taken[0] == 1 and [0, *taken] == list(range(steps.height)) == steps["step"].to_list()
    assert steps["old_kl"][-1] > 1e-6, "they are those before the first step, not before the resumed one"


@pytest.mark.slow
def test_where_no_group_has_spread_the_policy_stays_as_it_is_and_the_run_goes_on(
    arms: Arms, store: Store, iterate: Iterate
) -> None:
    left = []
    for _ in range(2):
        made = stages(iterate(arms(pays=False, model={"context_length": 400})))
        metrics = made["advantages"].manifest.metrics
        assert metrics["groups"] == metrics["groups_without_spread"] == 4
        policy = made["policy-distillation"].manifest
        assert policy.metrics["steps"] == 0 and policy.tables["training_rows"].rows == 0
        left.append(policy.adapters["policy"].digest)
    assert left[0] == left[1]


def test_what_a_policy_gradient_can_not_be_taken_of_is_refused(arms: Arms, tmp_path: Path) -> None:
    def said(**changes: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            check_config(arms(**changes), tmp_path / "data")
        return str(refused.value)

    assert "rollout.repeats: algorithm grpo compares several episodes" in said(rollout={"repeats": 1})
    policy = {"engine": "tiny", "structured": True, "temperature": 0.7, "top_p": 0.9}
    refusal = said(roles={"policy": policy})
    for field in ("temperature", "top_p", "structured"):
        assert f"roles.policy.{field}: algorithm grpo needs turns that the policy itself" in refusal
    assert "roles.policy.engine" in said(roles={"policy": {"engine": "rules", "structured": False}})
    lake = {"name": "frozen_lake", "options": {"maps": 2}}
    assert "rollout.exploration" in said(environment=lake, rollout={"repeats": 2, "exploration": 0.1})
    assert "rollout.source" in said(rollout={"source": "none", "repeats": 2})
