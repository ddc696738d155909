"""FrozenLake through the real stages, shrunk: critic-only iterations, uniform actions, rejection fine-tuning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Store
from tasks.environments.base import ListsActions
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.checks import check_config
from tasks.pipeline.registry import stages_of
from tests.support.iterations import Iterate


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_model(tmp_path_factory.mktemp("words"), seed=0)


@pytest.fixture
def lake(word_model: Path) -> Callable[..., Config]:
    """The shipped configuration with sizes for a test."""

    def make(**changes: Any) -> Config:
        content = load_config(PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml").model_dump()
        content["model"]["name"] = str(word_model)
        content["environment"]["options"]["maps"] = 4
        content["rollout"] |= {"episodes": 6, "first_episodes": 9, "uniform_until": 1}
        content["replay"]["transitions"] = 24
        content["improvement"] |= {"states": 6, "futures": 2, "rounds": 2, "from_iteration": 1}
        content["evaluation"] |= {"episodes": 3, "every": 1}
        for name, value in changes.items():
            content[name] = {**content[name], **value} if isinstance(value, dict) else value
        return Config.model_validate(content)

    return make


@pytest.mark.slow
def test_early_iterations_train_the_critic_alone_and_later_ones_go_on_from_it(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake()
    check_config(config, store.root)
    critic_only = ["rollout", "bellman-targets", "cot-correction", "critic-sft", "evaluation"]
    assert stages_of(config, 0) == critic_only
    first = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(first) == critic_only
    theta = first["critic-sft"].manifest.adapters["critic"].version
    assert set(first["evaluation"].scan("transitions").collect()["policy_version"]) == {theta}

    second = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert (
        second["rollout"].manifest.fingerprint_inputs.models["policy"]
        == first["critic-sft"].manifest.adapters["critic"].digest
    )
    assert second["bellman-targets"].manifest.fingerprint_inputs.models["target"] == (
        first["critic-sft"].manifest.adapters["target"].digest
    )
    mixed = second["critic-sft"].scan("training_rows").filter(pl.col("role") == "policy").collect()
    assert set(mixed["source_table"]) == {"transitions"}, "no refinement has been distilled yet"
    assert "policy" in second["policy-distillation"].manifest.adapters


def test_uniform_actions_are_legal_and_said_to_be_uniform(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake(rollout={"episodes": 40, "first_episodes": 40, "exploration": 0.5, "uniform_until": 1})
    environment = config.environment
    stages = [{r.committed.manifest.stage: r.committed for r in iterate(config)} for _ in range(2)]
    played = [made["rollout"].scan("transitions").collect() for made in stages]
    evaluated = stages[1]["evaluation"].scan("transitions").collect()
    assert "uniform" not in set(evaluated["policy_version"]), "an evaluation does not explore"
    fresh = stages[1]["critique"].scan("critiques").collect()["action_generation"]
    assert fresh.struct.field("seed").null_count() == 0, "nor does an action to improve"
    assert set(played[0]["policy_version"]) == {"uniform"} and played[0]["action_valid"].all()
    assert played[0]["generation"].is_null().all()
    uniform = played[1].filter(pl.col("policy_version") == "uniform")
    assert 0.3 < uniform.height / played[1].height < 0.7, "half of the steps explore"
    from tasks.environments import make_environment

    made = make_environment(environment)
    assert isinstance(made, ListsActions)
    for row in uniform.iter_rows(named=True):
        assert row["action"] in made.legal_actions(row["observation"])
        assert row["raw_action"] == f"Action: {row['action']}"
    assert len(set(played[0]["action"])) == 4


def test_rejection_fine_tuning_trains_on_successful_episodes_alone(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake(
        algorithm="rft", improvement={"from_iteration": 0}, rollout={"episodes": 60, "first_episodes": 60}
    )
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(results) == ["rollout", "policy-distillation", "evaluation"]
    won = results["rollout"].scan("episodes").filter(pl.col("success")).select("episode_id").collect()
    assert 0 < won.height < 60
    steps = results["rollout"].scan("transitions").collect()
    allowed = set(steps.filter(pl.col("episode_id").is_in(won["episode_id"].to_list()))["transition_id"])
    trained = results["policy-distillation"].scan("training_rows").collect()
    assert set(trained["source_id"]) <= allowed and set(trained["role"]) == {"policy"}
    assert trained.height == min(24, len(allowed))


def test_dealt_out_labels_are_the_same_labels_on_other_rows(
    lake: Callable[..., Config], store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    losses = {}
    for shuffled in (False, True):
        at = Store(tmp_path / f"data-{shuffled}")
        results = iterate(lake(backup={"shuffle_labels": shuffled}), at=at)
        critic = next(r.committed for r in results if r.committed.manifest.stage == "critic-sft")
        rows = critic.scan("training_rows").filter(pl.col("role") == "critic").collect()
        losses[shuffled] = (sorted(rows["label_tokens"]), rows["label_tokens"].to_list())
    assert losses[False][0] == losses[True][0] and losses[False][1] != losses[True][1]


def test_what_can_not_be_is_refused(lake: Callable[..., Config], tmp_path: Path) -> None:
    config = lake()
    numbers = config.model_copy(
        update={"environment": load_config(PROJECT_ROOT / "configs" / "default.yaml").environment}
    )
    with pytest.raises(ConfigError, match=r"rollout\.exploration: .* does not list its legal actions"):
        check_config(numbers, tmp_path / "data")
    separate = lake(parameters="separate", critic={"mix": None}, policy={"mix": None})
    with pytest.raises(ConfigError, match=r"improvement\.from_iteration"):
        check_config(separate, tmp_path / "data")
    with pytest.raises(ValidationError, match="decay_from and decay_until"):
        lake(critic={"decay_from": 7, "decay_until": 7})


def test_the_rate_falls_linearly_between_two_iterations(lake: Callable[..., Config]) -> None:
    critic = lake(critic={"decay_from": 10, "decay_until": 20, "final_rate": 0.1}).critic
    assert [critic.lr_scale(i) for i in (0, 10, 15, 20, 99)] == pytest.approx([1, 1, 0.55, 0.1, 0.1])
    assert lake(critic={"decay_from": None, "decay_until": None}).critic.lr_scale(99) == 1.0
