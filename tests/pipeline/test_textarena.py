"""TextArena's games through all stages, with scripted roles."""

import asyncio
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Store
from tasks.environments import make_environment
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.runner import run_stage
from tests.support.iterations import ROLES, Iterate

PLAYER = {"backend": "scripted", "rules": "tests.support.arena_rules:player"}


@pytest.fixture
def arena(make_config: Callable[..., Config]) -> Callable[..., Config]:
    """A game with scripted roles, and an opponent of that name where it has one."""

    def make(game: str, opponent: str | None = None, **settings: Any) -> Config:
        engines: dict[str, Any] = {"rules": PLAYER}
        model = None
        if opponent:
            engines["other"] = {"backend": "scripted", "rules": f"tests.support.arena_rules:{opponent}"}
            model = {"engine": "other"}
        return make_config(
            engines=engines,
            environment={
                "name": "textarena",
                "options": {"game": game, "settings": settings},
                "model": model,
            },
            model={"context_length": 8000},
            rollout={"episodes": 6, "max_steps": 5},
            faults={"max_failed_share": 1.0},
        )

    return make


@pytest.mark.parametrize(("game", "settings"), [("FrozenLake-v0", {}), ("TowerOfHanoi-v0", {"max_turns": 3})])
def test_an_iteration_of_a_game_for_one(
    game: str, settings: dict[str, int], arena: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = arena(game, **settings)
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert len(made) == 8
    steps = made["rollout"].scan("transitions").collect()
    episodes = made["rollout"].scan("episodes").collect()
    assert set(episodes["environment"]) == {f"textarena/{game}"}
    assert set(episodes["status"]) == {"ok"} and episodes["done"].any()
    assert not steps["action_valid"].all(), "walls and large disks are run into"
    ended = steps.filter("done")
    assert not ended["truncated"].any()
    assert (ended["reward"] == ended["success"].cast(float)).all()
    refined = made["refinement"].scan("refinements").collect()
    assert refined["valid"].any()
    assert (refined["valid"] == (refined["status"] == "ok")).all()


@pytest.mark.slow
def test_an_iteration_of_a_game_for_two(arena: Callable[..., Config], store: Store, iterate: Iterate) -> None:
    config = arena("TicTacToe-v0", "opponent")
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert len(made) == 8
    steps = made["rollout"].scan("transitions").collect()
    episodes = made["rollout"].scan("episodes").collect()
    assert set(episodes["status"]) == {"ok"} and episodes["done"].all()
    assert set(steps.filter("done")["game_reward"]) <= {-1.0, 0.0, 1.0}
    assert steps["action_valid"].all()
    going_on = steps.filter(~pl.col("done"))["next_observation"]
    assert going_on.str.contains(r"\[Player [01]\] \[\d\]").all(), "the opponent's move is seen"
    said = steps["speaker_generations"].explode().drop_nulls().struct.unnest()
    assert set(said["model_version"]) == {"rules:tests.support.arena_rules:opponent"}
    assert made["refinement"].scan("refinements").collect()["valid"].any()


def test_an_opponent_without_an_answer_ends_its_own_episode(
    arena: Callable[..., Config], store: Store
) -> None:
    config = arena("TicTacToe-v0", "tired_opponent")
    begin_iteration(store, config, 0)
    episodes = asyncio.run(run_stage(store, config, "rollout", 0)).committed.scan("episodes").collect()
    failed = episodes.filter(status="speaker_error")
    assert failed.height and set(failed["error"]) == {"environment.model: too tired"}


def test_a_game_that_breaks_ends_its_own_episode(arena: Callable[..., Config], store: Store) -> None:
    content = arena("Countdown-v0").model_dump()
    content["engines"]["rules"]["rules"] = "tests.support.arena_rules:blunderer"
    config = Config.model_validate(content)
    begin_iteration(store, config, 0)
    made = asyncio.run(run_stage(store, config, "rollout", 0)).committed
    episodes, steps = (made.scan(name).collect() for name in ("episodes", "transitions"))
    assert set(episodes["status"]) == {"environment_error"} and not episodes["done"].any()
    assert episodes["error"].str.contains("textarena/Countdown-v0: the game ended with 'Invalid").all()
    assert steps["truncated"].all() and (episodes["steps"] == 1).all(), "what was played before it stays"


def test_a_game_for_two_without_an_opponent_is_refused(arena: Callable[..., Config], store: Store) -> None:
    with pytest.raises(
        ConfigError, match=r"environment\.model: textarena/TicTacToe-v0 needs an environment model"
    ):
        check_config(arena("TicTacToe-v0"), store.root)


def test_the_shipped_configurations_play_what_they_say() -> None:
    for file, game in (("textarena.yaml", "TowerOfHanoi-v0"), ("textarena_opponent.yaml", "TicTacToe-v0")):
        config = load_config(PROJECT_ROOT / "configs" / "examples" / file)
        environment = make_environment(config.environment)
        assert environment.name == f"textarena/{game}"
        assert all(getattr(config.roles, role).engine in config.engines for role in ROLES)
