"""MiniWoB++ through the real stages, with scripted roles and a real browser."""

from collections.abc import Callable

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tasks.environments import make_environment
from tasks.environments.registry import BUILTIN
from tasks.pipeline.checks import check_config
from tests.support.iterations import ROLES, Iterate

MISSING = BUILTIN["miniwob"].missing
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=f"miniwob {MISSING}")]


def test_an_iteration_of_web_tasks(
    make_config: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = make_config(
        "tests.support.web_rules:player",
        algorithm="rft",
        environment={
            "name": "miniwob",
            "options": {
                "pages": ["click-checkboxes", "login-user"],
                "steps": 8,
                "browsers": 2,
                "episodes": 10,
            },
        },
        rollout={"episodes": 10, "max_steps": 5, "exploration": 0.2},
        evaluation={"episodes": 4},
    )
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(made) == list(ALGORITHMS["rft"].stages) and verify(store) == []
    steps, episodes = (made["rollout"].scan(name).collect() for name in ("transitions", "episodes"))
    assert set(episodes["status"]) == {"ok"} and set(episodes["environment"]) == {"miniwob"}
    assert episodes["success"].any() and not episodes["success"].all()
    assert episodes["truncated"].any(), "an episode that is cut gives its browser back too"
    assert not steps["action_valid"].all() and steps["action_valid"].any()
    assert (steps.filter("success")["game_reward"] == 1.0).all()
    assert steps["observation"].str.starts_with("Task: ").all()
    later = steps.filter(pl.col("step") > 0)
    assert later["observation"].str.contains("\nDone: ").all(), "an observation holds the whole state"
    row = (
        made["evaluation"].scan("evaluations").filter(pl.col("split") == "eval").collect().row(0, named=True)
    )
    assert row["baseline"] == "random" and row["coverage"] == 1.0


def test_the_shipped_configuration_plays_web_tasks() -> None:
    config = load_config(PROJECT_ROOT / "configs" / "examples" / "miniwob_smollm2.yaml")
    environment = make_environment(config.environment)
    assert environment.name == "miniwob"
    assert config.rollout.max_steps >= config.environment.options["steps"], (
        "time is up before an episode is cut"
    )
    assert all(getattr(config.roles, role).engine in config.engines for role in ROLES)
