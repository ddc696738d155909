"""20 Questions through the stages: answered from the table of facts, and by a model."""

import asyncio
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.runner import run_stage
from tests.support.iterations import Iterate


@pytest.fixture
def game(make_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(**environment: Any) -> Config:
        return make_config(
            # structured, no question would be one that the facts can't answer
            roles={
                role: {"engine": "rules", "structured": False} for role in ("policy", "bootstrap", "refine")
            },
            engines={
                "rules": {"backend": "scripted", "rules": "tests.support.question_rules:player"},
                "oracle": {"backend": "scripted", "rules": "tests.support.question_rules:oracle"},
            },
            environment={"name": "twenty_questions", **environment},
            rollout={"episodes": 6, "max_steps": 20},
            replay={"transitions": 4},
            improvement={"states": 4},
            evaluation={"episodes": 1},
        )

    return make


def test_an_iteration_runs_on_the_facts_alone(
    game: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = game(options={"oracle": "facts"})
    check_config(config, store.root)
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert tuple(results) == ALGORITHMS["nlac"].stages
    episodes = results["rollout"].scan("episodes").collect()
    steps = results["rollout"].scan("transitions").collect()
    files = {k: v for k, v in results["rollout"].manifest.fingerprint_inputs.config.items() if ".files." in k}
    assert set(files) == {f"environment.files.{n}" for n in ("objects", "categories", "facts", "sizes")}
    assert (episodes["status"] == "ok").all()
    assert episodes["done"].all() and (episodes["steps"] == 20).all() and not episodes["truncated"].any()
    said = steps["next_observation"].str.extract(r"^(\w+)")
    assert set(said) == {"Yes", "No", "Invalid"}
    assert (steps["action_valid"] == (said != "Invalid")).all()
    proposals = results["refinement"].scan("refinements").collect()
    assert (proposals["valid"] == (proposals["action"] != "Does it sleep furiously?")).all()
    assert not proposals.filter(~pl.col("valid"))["distil"].any()


def test_a_model_answers_and_an_answer_that_is_none_ends_its_episode(
    game: Callable[..., Config], store: Store
) -> None:
    config = game(options={}, model={"engine": "oracle", "temperature": 0})
    check_config(config, store.root)
    begin_iteration(store, config, 0)
    made = asyncio.run(run_stage(store, config, "rollout", 0)).committed
    steps, episodes = made.scan("transitions").collect(), made.scan("episodes").collect()
    broken = episodes.filter(status="speaker_unreadable")
    assert broken.height and broken["error"].str.contains("the oracle wrote 'Perhaps.'").all()
    for action, said in zip(steps["action"], steps["next_observation"], strict=True):
        assert said.startswith("Yes" if "animal" in action else "No")
