"""What stages do beside their rows: episodes advance on their own, training puts servers to sleep first."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from storage.store import Store
from tasks.environments.base import Step
from tasks.environments.textarena import TextArena
from tasks.pipeline import workplace as running
from tasks.pipeline.iterations import run_stages
from tasks.pipeline.registry import STAGES
from tests.support.iterations import Iterate


def test_no_episode_waits_for_another(
    store: Store, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's first step takes until all others are over."""
    config = make_config()
    step, turns = TextArena.step, Counter[int]()
    begun: list[TextArena] = []
    over: list[TextArena] = []
    others_are_over = asyncio.Event()

    async def slow_for_one(self: TextArena, action: str) -> Step:
        if self not in begun:
            begun.append(self)
        if self is begun[0]:
            await asyncio.wait_for(others_are_over.wait(), 30)
        outcome = await step(self, action)
        turns[begun.index(self)] += 1
        if outcome.done or turns[begun.index(self)] == config.rollout.max_steps:
            over.append(self)
        if len(over) == config.rollout.episodes - 1:
            others_are_over.set()
        return outcome

    monkeypatch.setattr(TextArena, "step", slow_for_one)
    played = asyncio.run(run_stages(store, config, ["rollout"]))
    assert played.scan("episodes").collect()["status"].to_list() == ["ok"] * 4
    assert len(over) == 4 and over[-1] is begun[0]


@pytest.mark.parametrize("shared", [True, False])
def test_servers_are_put_to_sleep_before_training_on_a_shared_gpu(
    store: Store,
    make_config: Callable[..., Config],
    iterate: Iterate,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
) -> None:
    done: list[set[str]] = []

    def noted(cache_dir: Path) -> list[str]:
        assert cache_dir == store.cache_dir
        done.append({stage for stage in STAGES if store.committed("trial", stage, 0)})
        return []

    monkeypatch.setattr(running, "put_to_sleep", noted)
    iterate(make_config(pools={"shared_gpu": shared}))
    critic = {"rollout", "bellman-targets", "cot-correction"}
    policy = {*critic, "critic-sft", "critique", "refinement"}
    assert done == ([critic, policy] if shared else [])
