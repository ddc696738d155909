"""`nlac play` shows an episode while it is played; scripted roles."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from tasks.export.play import play
from tasks.export.policy import Policy


class Enough(Exception):
    """The reader has seen enough."""


def test_an_episode_is_shown_step_by_step_as_it_is_played(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    policy = Policy(make_config(rollout={"max_steps": 3}), None, None)
    shown: list[str] = []
    episode = asyncio.run(play(policy, seed=1, cache_dir=tmp_path, show=shown.append))
    assert len(shown) == episode.steps + 2 > 2
    assert "played by" in shown[0]
    for number, step in enumerate(shown[1:-1]):
        assert f"--- step {number}: the policy sees" in step and "--- action: " in step
    assert f"after {episode.steps} steps; reward {episode.reward:g}" in shown[-1]
    assert not list(tmp_path.iterdir())

    def leave(paragraph: str) -> None:
        if "--- step 0" in paragraph:
            raise Enough

    with pytest.raises(Enough):  # after the first step, not at the end
        asyncio.run(play(policy, seed=1, cache_dir=tmp_path, show=leave))
