"""The environment model: it is asked like a role, recorded, part of a stage's fingerprint, and refused if missing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config
from schemas.load import ConfigError
from storage.store import Committed, Store
from tasks.algorithms.nlac import NLAC
from tasks.engines.request_journal import RequestJournal
from tasks.environments import UnusableEnvironment
from tasks.export.play import play
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.plan import plan
from tasks.pipeline.runner import run_stage
from tasks.runtime.context import stage_context
from tasks.runtime.stage import Inputs
from tests.support.iterations import Iterate

PLAYER = {"backend": "scripted", "rules": "tests.support.asked:guesses"}
OTHER = {"backend": "scripted", "rules": "tests.support.asked:speaks"}


@pytest.fixture
def asked(make_config: Callable[..., Config]) -> Callable[..., Config]:
    """The game with an environment model."""

    def make(**model: Any) -> Config:
        return make_config(
            engines={"rules": PLAYER, "other": OTHER},
            environment={
                "name": "tests.support.asked:Asked",
                "options": {},
                "model": {"engine": "other", "structured": True, **model},
            },
            rollout={"episodes": 8},
            replay={"transitions": 4},
            improvement={"states": 3},
            faults={"max_failed_share": 1.0},
        )

    return make


def test_a_failed_answer_ends_its_own_episode_and_the_rest_of_the_iteration_goes_on(
    asked: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = asked()
    check_config(config, store.root)
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    episodes = results["rollout"].scan("episodes").collect()
    steps = results["rollout"].scan("transitions").collect()
    assert set(episodes["status"]) == {"ok", "speaker_error"}
    failed = episodes.filter(status="speaker_error")
    assert set(failed["error"]) == {"environment.model: no answer to twenty"}
    assert not failed["done"].any() and (steps["action"] == "[2]").all()
    cut = steps.filter(pl.col("episode_id").is_in(failed["episode_id"].to_list()))
    assert cut["truncated"].all(), "what was played before the failure bootstraps"
    lost = episodes.filter(status="ok")
    assert lost["done"].all() and (lost["steps"] == 2).all() and not lost["success"].any()

    held_out = results["evaluation"].scan("episodes").collect()
    assert held_out["status"].to_list()[1] == "speaker_error", "eval task 1 can't even be opened"
    assert held_out["steps"].to_list()[1] == 0
    evaluated = results["evaluation"].scan("evaluations").collect().row(0, named=True)
    assert evaluated["failed_episodes"] >= 1
    assert (
        evaluated["coverage"]
        == evaluated["episodes"] / 3
        == results["evaluation"].manifest.metrics["coverage"]
    )


def play_rollout(store: Store, config: Config) -> Committed:
    begin_iteration(store, config, 0)
    return asyncio.run(run_stage(store, config, "rollout", 0)).committed


def test_what_it_said_has_its_provenance_beside_it(asked: Callable[..., Config], store: Store) -> None:
    rollout = play_rollout(store, asked(temperature=0.25, max_tokens=7))
    steps = rollout.scan("transitions").sort("transition_id").collect()
    for row in steps.iter_rows(named=True):
        made = row["speaker_generations"]
        assert len(made) == (2 if row["step"] == 0 else 1), "the task was set by it too"
        assert {(g["engine"], g["temperature"], g["max_tokens"]) for g in made} == {("other", 0.25, 7)}
        assert {g["model_version"] for g in made} == {"rules:tests.support.asked:speaks"}
        if row["step"] == 0:
            assert row["observation"] == f"Guess it. ({made[0]['seed']})"
    seeds = [g["seed"] for row in steps["speaker_generations"] for g in row]
    assert len(set(seeds)) == len(seeds), "each answer has a random stream of its own"


def test_it_and_its_engine_determine_what_is_played(asked: Callable[..., Config], store: Store) -> None:
    config = asked()
    play_rollout(store, config)
    warmer = decide(store, asked(temperature=0.5), "rollout", 0, frozen=False)
    assert warmer.reasons == ("config: environment.model.temperature: 1.0 -> 0.5",)
    rules = config.engines["other"].model_copy(update={"rules": "tests.support.rules:rubbish"})
    other = config.model_copy(update={"engines": {**config.engines, "other": rules}})
    (reason,) = decide(store, other, "rollout", 0, frozen=False).reasons
    assert reason.startswith("config: engines.other.rules: ")
    faster = config.engines["other"].model_copy(update={"max_batch": 3})
    same = config.model_copy(update={"engines": {**config.engines, "other": faster}})
    assert decide(store, same, "rollout", 0, frozen=False).reuse


def test_an_answer_is_kept_for_a_stage_that_resumes(
    asked: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opening() -> str:
        journal = RequestJournal(tmp_path / "journal")
        ctx = stage_context(asked(), NLAC, "rollout", Inputs(), tmp_path, journal=journal)
        environment = ctx.new_environment("e/1")
        text = asyncio.run(environment.reset(environment.tasks("train")[0]))
        journal.close()
        return text

    first = opening()
    monkeypatch.setattr("tests.support.asked.speaks", lambda request: "something else")
    assert opening() == first


def test_a_person_can_watch_an_episode(asked: Callable[..., Config], tmp_path: Path) -> None:
    from tasks.export.policy import Policy

    policy = Policy(asked(), 0, None)
    shown: list[str] = []
    episode = asyncio.run(play(policy, "asked/train/0", cache_dir=tmp_path, show=shown.append))
    assert episode.status in ("ok", "speaker_error") and shown


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"model": None}, r"environment\.model: asked needs an environment model and none is configured"),
        (
            {"name": "textarena", "options": {"game": "GuessTheNumber-v0"}},
            r"environment\.model: textarena/GuessTheNumber-v0 needs no environment model with these options",
        ),
        (
            {"model": {"engine": "hosted", "structured": True}},
            r"environment\.model\.structured: engine 'hosted'",
        ),
    ],
)
def test_a_wrong_environment_model_is_refused_before_anything_runs(
    asked: Callable[..., Config], store: Store, environment: dict[str, Any], said: str
) -> None:
    content = asked().model_dump()
    content["environment"] |= environment
    content["engines"]["hosted"] = {"backend": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    with pytest.raises(ConfigError, match=said):
        check_config(Config.model_validate(content), store.root)


def test_an_unknown_engine_or_a_template_of_its_own_is_refused_by_name(asked: Callable[..., Config]) -> None:
    with pytest.raises(ValidationError, match=r"environment\.model\.engine: no engine 'cloud'"):
        asked(engine="cloud")
    with pytest.raises(ValidationError, match=r"model\.template: the environment writes"):
        asked(template="mine.j2")


def test_an_environment_without_its_model_is_not_played(asked: Callable[..., Config], tmp_path: Path) -> None:
    config = asked()
    alone = config.model_copy(update={"environment": config.environment.model_copy(update={"model": None})})
    ctx = stage_context(alone, NLAC, "rollout", Inputs(), tmp_path)
    with pytest.raises(UnusableEnvironment, match=r"environment\.model"):
        ctx.new_environment("e/1")


def test_the_plan_counts_what_it_is_asked(
    asked: Callable[..., Config], make_config: Callable[..., Config]
) -> None:
    with_it, without = (
        plan(asked()),
        plan(make_config(rollout={"episodes": 8}, replay={"transitions": 4}, improvement={"states": 3})),
    )
    requests = [{r.stage: r.bound.requests for r in rows} for rows in (with_it, without)]
    assert requests[0]["rollout"] == 2 * requests[1]["rollout"]
    assert requests[0]["critique"] == requests[1]["critique"]
