"""SAC through its stages: TD targets and weights that join, a Q head and its target, and a killed run that goes on."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from schemas.config import Config
from schemas.load import ConfigError
from schemas.rows import ReplaySample
from storage.history import State
from storage.sql.views import connect
from storage.store import Committed, Store
from tasks.algorithms.sac import SAC
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.export.show import show
from tasks.export.stored import Stored
from tasks.improvement.soft_values import soft_value, soft_weights
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.plan import plan
from tasks.pipeline.runner import StageResult
from tasks.runtime.context import stage_context
from tasks.runtime.stage import Inputs, StageFailed
from tasks.stages.td_targets import td_target
from tasks.training import trainer
from tasks.training.records import TrainingError
from tests.support.arms import Arms, play_arms
from tests.support.iterations import Iterate

SETTINGS: dict[str, Any] = {
    "environment": {"name": "tests.support.arms:ListedArms", "reward": "game"},
    "rollout": {"episodes": 16, "max_steps": 1, "uniform_until": 2},
    "replay": {"transitions": 32},
    "improvement": {"states": 16, "actions": 4},
    "critic": {"batch_rows": 16, "micro_batch_rows": 16, "epochs": 8, "learning_rate": 5e-3},
    "policy": {"batch_rows": 16, "micro_batch_rows": 16, "epochs": 8, "learning_rate": 5e-3},
    "soft_q": {"temperature": 0.1, "discount": 0.9},
}


@pytest.fixture
def arms(make_config: Callable[..., Config], byte_checkpoint: Path) -> Arms:
    return partial(play_arms, make_config, byte_checkpoint, "sac", max_tokens=12)


def settings(turns: int = 1, **changes: Any) -> dict[str, Any]:
    """Two listed arms; a mapping replaces only the fields that it names."""
    environment = {**SETTINGS["environment"], "options": {"turns": turns}}
    rollout = {**SETTINGS["rollout"], "max_steps": turns}
    given = {**SETTINGS, "environment": environment, "rollout": rollout}
    return given | {name: {**given.get(name, {}), **value} for name, value in changes.items()}


def stages(results: Sequence[StageResult]) -> dict[str, Committed]:
    return {result.committed.manifest.stage: result.committed for result in results}


@pytest.mark.slow
def test_a_two_armed_bandit_is_solved_and_the_values_of_its_arms_known(
    arms: Arms, store: Store, iterate: Iterate
) -> None:
    config = arms(**settings())
    check_config(config, store.root)
    made = [stages(iterate(config)) for _ in range(7)]
    paid = [one["rollout"].manifest.metrics["mean_reward"] for one in made]
    assert paid[0] < 0.9 and min(paid[-2:]) >= 0.9, paid
    valued = made[-1]["action-values"].scan("action_values").collect()
    actions = made[-1]["action-samples"].scan("sampled_actions").collect()
    of_arm = valued.join(actions, on="action_id").filter(action="b")
    assert of_arm["value"].to_list() == pytest.approx([1.0] * of_arm.height, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "separate"])
def test_targets_values_and_weights_join_and_are_those_of_the_heads_that_are_named(
    arms: Arms, store: Store, iterate: Iterate, monkeypatch: pytest.MonkeyPatch, parameters: str
) -> None:
    few = {"epochs": 1}
    config = arms(**settings(turns=2, critic=few, policy=few), parameters=parameters)
    first = stages(iterate(config))
    assert tuple(first) == SAC.stages[:-1] and [row.stage for row in plan(config)] == list(first)
    assert all(decide(store, config, stage, 0).reuse for stage in first)
    take_step = trainer.take_step

    def dies(*arguments: Any, **more: Any) -> Any:
        raise TrainingError("killed")

    monkeypatch.setattr(trainer, "take_step", dies)
    with pytest.raises(StageFailed, match="killed"):
        iterate(config)
    monkeypatch.setattr(trainer, "take_step", take_step)
    results = iterate(config)
    assert [result.reused for result in results] == [True] * 4 + [False] * 3
    second = stages(results)

    before = first["critic-sft" if parameters == "separate" else "policy-distillation"].manifest
    targets = second["td-targets"].scan("td_targets").collect()
    assert set(targets["target_version"]) == {before.adapters["target"].version}
    query = """select t.target, t.soft_value, t.next_values, x.reward, x.done from td_targets t
               join transitions x using (transition_id) join replay_samples using (sample_id) where t.iteration = 1"""
    joined = connect(store).sql(query).fetchall()
    assert len(joined) == 32 and {row[-1] for row in joined} == {True, False}
    for target, soft, values, reward, done in joined:
        assert done == (soft is None) == (not values)
        if not done:
            assert len(values) == 4 and soft == pytest.approx(soft_value(values, 0.1))
        assert target == pytest.approx(reward + 0.9 * (soft or 0.0))
    assert any(value for row in joined for value in row[2]), "the target's head has moved from 0"

    weighted = second["action-values"].scan("action_values").collect()
    assert set(weighted["critic_version"]) == {second["critic-sft"].manifest.adapters["critic"].version}
    for (_,), rows in weighted.group_by("sample_id"):
        assert rows["weight"].to_list() == pytest.approx(soft_weights(rows["value"].to_list(), 0.1))
    rows = second["policy-distillation"].scan("training_rows").collect()
    trained = rows.filter(source_table="sampled_actions").join(
        weighted, left_on="source_id", right_on="action_id"
    )
    assert trained.height == weighted.height > 0 and trained["weight"].equals(trained["weight_right"])
    mixed = rows.filter(source_table="td_targets")
    assert mixed.is_empty() == (parameters == "separate") and mixed["label_tokens"].sum() == 0
    critic = second["critic-sft"].scan("training_rows").collect()
    assert critic.filter(source_table="sampled_actions").is_empty() == (parameters == "separate")
    steps = second["critic-sft"].scan("training_steps").collect()
    assert steps["value_loss"].is_not_null().all() and steps["critic_loss"].is_null().all()

    one = trained.row(0, named=True)
    parts = {part.title: part.text for part in show(Stored(store, connect(store)), one["source_id"])}
    assert parts[f"Q by {one['critic_version']}"] == f"{one['value']:.3f}, weight {one['weight']:.3f}"
    assert "target" in {part.title for part in show(Stored(store, connect(store)), one["sample_id"])}

    files = {f.path for f in second["critic-sft"].manifest.files}
    assert {"value_head.pt", "target_value_head.pt", "optimizer.pt"} <= files
    live, average = (
        torch.load(second["critic-sft"].path / f"{name}.pt", weights_only=True)["weight"]
        for name in ("value_head", "target_value_head")
    )
    assert average.norm() > 0 and not torch.equal(live, average)


def drawn(*, reward: float = 0.0, done: bool = False) -> DrawnTransition:
    return DrawnTransition("t", State((), "arm?"), "Action: a", "", "a", True, reward, "no", done, "task")


@pytest.mark.parametrize(
    ("transition", "values", "expected"),
    [
        # alpha log mean exp(Q / alpha) of 1 and 0 with alpha = 0.5: 0.5 ln((e^2 + 1) / 2) = 0.716891
        (drawn(reward=0.25), [1.0, 0.0], 0.25 + 0.8 * 0.716891),
        (drawn(reward=1.0, done=True), [], 1.0),
        (drawn(), [], None),
    ],
)
def test_a_td_target_by_hand(
    arms: Arms, transition: DrawnTransition, values: list[float], expected: float | None, tmp_path: Path
) -> None:
    config = arms(**settings(soft_q={"temperature": 0.5, "discount": 0.8}))
    ctx = stage_context(config, SAC, "td-targets", Inputs(), tmp_path)
    sample = ReplaySample(
        run="trial", iteration=0, sample_id="s", transition_id="t", draw=0, priority=1, scored=False, probability=1,
        weight=1,
    )  # fmt: skip
    row = td_target(ctx, sample, transition, values, fault="nothing was said", version="base")
    assert row.target == (None if expected is None else pytest.approx(expected, abs=1e-6))
    assert (row.status, row.error) == (
        ("no_next_value", "nothing was said") if expected is None else ("ok", None)
    )


def test_what_a_scalar_critic_can_not_use_is_refused(arms: Arms, tmp_path: Path) -> None:
    def said(**changes: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            check_config(arms(**settings(**changes)), tmp_path / "data")
        return str(refused.value)

    assert "improvement.actions: algorithm sac compares several" in said(improvement={"actions": 1})
    assert "improvement.action: algorithm sac samples" in said(improvement={"action": "replayed"})
    refusal = said(backup={"loss": "token_kl", "shuffle_labels": True, "draws": 2})
    for field in ("loss", "shuffle_labels", "draws"):
        assert f"backup.{field}: algorithm sac backs up numbers" in refusal


def test_before_the_policy_is_improved_only_the_critic_samples_and_trains(
    arms: Arms, store: Store, iterate: Iterate
) -> None:
    config = arms(**settings(turns=2, improvement={"from_iteration": 1}))
    first, second = (stages(iterate(config)) for _ in range(2))
    assert not {"action-values", "policy-distillation"} & set(first)
    assert set(first["action-samples"].scan("sampled_actions").collect()["place"]) == {"next_state"}
    theta = first["critic-sft"].manifest.adapters
    assert set(second["td-targets"].scan("td_targets").collect()["target_version"]) == {
        theta["target"].version
    }
    sampled = second["action-samples"].scan("sampled_actions").collect()
    assert set(sampled.filter(pl.col("place") == "state")["action"]) == {"a", "b"}
