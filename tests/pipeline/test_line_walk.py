"""A whole iteration of the line walk: what the scripted roles write passes through every stage."""

from collections.abc import Callable

import polars as pl
import pytest

from schemas.config import Config
from storage.store import Store
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk.text import read_description, read_observation, well_formed
from tasks.pipeline.checks import check_config
from tests.support.iterations import Iterate


@pytest.mark.slow
def test_an_iteration_backs_up_outcomes_and_distils_the_highest_value(
    make_config: Callable[..., Config], iterate: Iterate, store: Store
) -> None:
    roles = ("policy", "predict", "bootstrap", "evaluate", "refine", "correct")
    config = make_config(
        "tests.support.walk_rules:walks",
        environment={"name": "line_walk", "options": {}},
        roles={role: {"engine": "rules", "structured": False} for role in roles},
        rollout={"episodes": 16, "max_steps": 8},
        replay={"transitions": 48},
        improvement={"states": 24, "futures": 2, "rounds": 3},
    )
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    steps = made["rollout"].scan("transitions").collect()
    assert steps["action_valid"].all() and steps["truncated"].sum() + steps["done"].sum() == 16

    shown = steps.select("transition_id", played="action")
    labels = made["bellman-targets"].scan("bellman_targets").collect().join(shown, on="transition_id")
    assert labels.height == 48 and not labels["malformed"].any()
    assert all(
        well_formed(label, action) for label, action in labels.select("description", "played").iter_rows()
    )
    backed_up = {read_description(label).steps for label in labels["description"]}  # type: ignore[union-attr]
    assert {1, 2} <= backed_up <= {1, 2, None}, "an outcome, and the step before one"

    judged = pl.concat([made[stage].scan("critiques").collect() for stage in ("critique", "refinement")])
    distilled = made["refinement"].scan("refinements").filter("distil").collect()
    assert (judged["status"] == "ok").all() and distilled.height == 24
    seen = dict(steps.select("transition_id", "observation").iter_rows())
    for transition, action in distilled.select("transition_id", "action").iter_rows():
        view = read_observation(seen[transition])
        if "goal" in view.leads_to:
            assert action == ("<", "<<", ">", ">>")[view.leads_to.index("goal")]
    assert set(made["evaluation"].scan("episodes").collect()["task_id"]) <= {
        task.task_id for task in LineWalk().tasks("eval")
    }
