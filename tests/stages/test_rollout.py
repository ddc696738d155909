"""Which episodes a rollout plays: a group is one draw of a task."""

import asyncio
from collections.abc import Callable

import polars as pl

from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import run_stages
from tasks.pipeline.plan import plan


def test_a_task_is_played_as_often_as_repeats_says_with_other_random_streams(
    make_config: Callable[..., Config], store: Store
) -> None:
    config = make_config(rollout={"episodes": 3, "repeats": 2, "max_steps": 4})
    assert plan(config)[0].bound.requests == 3 * 2 * 4
    made = asyncio.run(run_stages(store, config, ["rollout"]))
    episodes = made.scan("episodes").collect()
    assert episodes["group_id"].to_list() == [
        f"trial/00000/train/g/{number:05d}" for number in (0, 0, 1, 1, 2, 2)
    ]
    of_group = episodes.group_by("group_id").agg(pl.col("task_id", "seed").n_unique())
    assert of_group["task_id"].to_list() == of_group["seed"].to_list() == [1, 1, 1]
    assert episodes["task_id"].n_unique() == 3
    actions = made.scan("transitions").group_by("episode_id").agg(pl.col("raw_action")).collect()
    assert actions["raw_action"].n_unique() == 6


def test_without_repeats_each_episode_is_a_group(make_config: Callable[..., Config], store: Store) -> None:
    made = asyncio.run(run_stages(store, make_config(), ["rollout"]))
    assert made.scan("episodes").collect()["group_id"].n_unique() == 4
