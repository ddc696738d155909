"""The baselines on FrozenLake, shrunk: its rules read rollouts and score verdicts, and every step is counted."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
import pytest

from benchmarks.learning.environment_steps import collected_steps, simulated_steps
from benchmarks.learning.lake_run import measure
from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Committed, Store
from tasks.environments.frozen_lake.text import read_future, read_observation
from tasks.environments.frozen_lake.verdict import judged_optimal, optimal_probability
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.checks import check_config
from tasks.text.transcript import read_transcript
from tests.support.iterations import Iterate

GAMMA = 0.8


@pytest.fixture
def lake(tmp_path: Path) -> Callable[..., Config]:
    """The shipped configuration, small, with a critic that learns its format in one iteration."""

    def make(algorithm: str, uniform_until: int = 1, **improvement: Any) -> Config:
        content = load_config(PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml").model_dump()
        content["algorithm"] = algorithm
        content["model"]["name"] = str(make_word_model(tmp_path / "model", seed=0))
        content["environment"]["options"]["maps"] = 2
        content["rollout"] |= {"episodes": 24, "first_episodes": 48, "uniform_until": uniform_until}
        content["replay"]["transitions"] = 400
        content["critic"] |= {"epochs": 8, "batch_rows": 64, "micro_batch_rows": 64, "learning_rate": 5e-3}
        content["improvement"] |= {
            "states": 24,
            "futures": 2,
            "rounds": 2,
            "from_iteration": 0,
            **improvement,
        }
        content["evaluation"] |= {"episodes": 2, "every": 1}
        return Config.model_validate(content)

    return make


def run_twice(config: Config, store: Store, iterate: Iterate) -> list[dict[str, Committed]]:
    check_config(config, store.root)
    return [{r.committed.manifest.stage: r.committed for r in iterate(config)} for _ in range(2)]


def judged(made: Committed, played: pl.DataFrame) -> list[tuple[dict[str, Any], str, list[str]]]:
    """Each critique with the observation it was made at and the futures that it read."""
    futures = made.scan("futures").filter(status="ok").sort("future_id").collect()
    seen = dict(zip(played["transition_id"], played["observation"], strict=True))
    return [
        (
            row,
            seen[row["transition_id"]],
            futures.filter(critique_id=row["critique_id"])["description"].to_list(),
        )
        for row in made.scan("critiques").filter(status="ok").collect().iter_rows(named=True)
    ]


def transitions(iterations: list[dict[str, Committed]]) -> pl.DataFrame:
    return pl.concat([made["rollout"].scan("transitions") for made in iterations]).collect()


@pytest.mark.slow
def test_self_distillation_judges_by_the_rollouts_it_played(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake("self_distillation", states=12)
    iterations = run_twice(config, store, iterate)
    played, steps, outcomes = transitions(iterations), 0, []
    for made in iterations:
        statuses = made["critique"].manifest.tables["critiques"].statuses
        assert set(statuses) <= {"ok", "action_failed"}, "every rollout and every verdict was read"
        for stage in ("critique", "refinement"):
            for row, observation, futures in judged(made[stage], played):
                read = [read_future(text) for text in futures]
                assert len(read) == 2 and None not in read
                assert row["optimal"] is judged_optimal(read_observation(observation), futures)
                value = mean(future.value(GAMMA) for future in read if future)
                assert row["critique"] == f"value {value:.3f}"
                outcomes += [future.outcome for future in read if future]
                steps += sum(len(told.observations) for told in map(read_transcript, futures) if told)
        assert made["refinement"].scan("refinements").filter("distil").collect().height
    assert set(outcomes) == {"goal", "hole", "unclear"}

    assert (
        simulated_steps(store, config.run, 1)
        == steps
        > played.height
        == collected_steps(store, config.run, 1)
    )
    measured = asyncio.run(measure(store, config, 1, ranked_maps=0))
    assert (measured.environment_steps, measured.simulated_steps) == (steps + played.height, steps)


@pytest.mark.slow
def test_nlql_distils_the_action_whose_futures_are_nearest_the_straight_way(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake("nlql", uniform_until=2, actions=3)
    iterations = run_twice(config, store, iterate)
    played = transitions(iterations)
    for made in iterations:
        rows = judged(made["critique"], played)
        assert len({row["yes_probability"] for row, _, _ in rows}) > 1, "verdicts differ"
        read = [read_future(text) for _, _, futures in rows for text in futures]
        assert sum(future is not None for future in read) > len(read) / 2
        for row, observation, futures in rows:
            expected = optimal_probability(read_observation(observation), futures, GAMMA)
            assert row["yes_probability"] == pytest.approx(expected)
        chosen = made["refinement"].scan("refinements").filter("distil").collect()
        assert chosen.height
        for proposal in chosen.iter_rows(named=True):
            tried = {
                r["critique_id"]: r["yes_probability"]
                for r, _, _ in rows
                if r["sample_id"] == proposal["sample_id"]
            }
            assert len(tried) == 3 and tried[proposal["critique_id"]] == max(tried.values())
        labels = made["cot-correction"].scan("corrected_targets").collect()
        assert labels["backup_logprobs"].is_null().all(), "the backup's rules give no probabilities"

    assert simulated_steps(store, config.run, 1) == 0
    measured = asyncio.run(measure(store, config, 1, ranked_maps=24))
    assert measured.environment_steps == played.height and measured.rank is not None


def test_react_is_measured_without_a_step(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake("react")
    iterate(config)
    measured = asyncio.run(measure(store, config, 0, ranked_maps=0))
    assert measured.environment_steps == 0 and measured.sampled_success < 0.1, "nothing has been learned"


@pytest.mark.slow
def test_the_refiner_alone_distils_its_first_proposal_and_foresees_nothing(
    lake: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = lake("refiner_alone", uniform_until=2, rounds=1, futures=None)
    for made in run_twice(config, store, iterate):
        assert set(made["critique"].scan("futures").collect()["description"]) == {"unknown"}
        critiques = made["critique"].scan("critiques").collect()
        assert set(critiques["optimal"]) == {False}
        proposed = made["refinement"].scan("refinements").collect()
        judged_actions = dict(zip(critiques["sample_id"], critiques["action"], strict=True))
        for row in proposed.iter_rows(named=True):
            assert (row["round"], row["kind"], row["distil"]) == (1, "refined", row["valid"])
            assert row["action"] != judged_actions[row["sample_id"]], "it proposes what was not tried"
        trained = made["policy-distillation"].scan("training_rows").collect()
        assert set(trained["source_id"]) == set(proposed.filter("distil")["refinement_id"])


def test_the_refiner_alone_has_no_further_rounds(lake: Callable[..., Config], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"improvement\.rounds: algorithm refiner_alone.*set it to 1"):
        check_config(lake("refiner_alone", futures=None), tmp_path)
