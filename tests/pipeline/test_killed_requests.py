"""A stage killed by SIGKILL when nine tenths of its requests are answered asks again only what was in flight."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import dump_config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.runner import run_stage
from tests.support.rules import CAP
from tests.support.waiting import wait_until

STAGE = """
import asyncio, sys
from pathlib import Path
from schemas.load import load_config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.runner import run_stage
asyncio.run(run_stage(Store(Path(sys.argv[1])), load_config(sys.argv[2]), sys.argv[3], 0, force=True))
"""


def asked(notes: Path) -> Counter[str]:
    """How often each request was begun."""
    return Counter(notes.read_text().splitlines()) if notes.exists() else Counter()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["rollout", "critique"])
def test_a_stage_killed_at_nine_tenths_asks_again_at_most_what_was_in_flight(
    stage: str,
    store: Store,
    make_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(
        rules="tests.support.rules:noted",
        rollout={"episodes": 24, "max_steps": 6},
        replay={"transitions": 60},
        improvement={"states": 40},
    )
    file, notes = tmp_path / "config.yaml", tmp_path / "requests"
    file.write_text(dump_config(config))
    monkeypatch.setenv("NLAC_TEST_COUNT", str(notes))
    stages = ALGORITHMS["nlac"].stages
    for name in stages[: stages.index(stage)]:
        asyncio.run(run_stage(store, config, name, 0))
    notes.unlink(missing_ok=True)
    uninterrupted = asyncio.run(run_stage(store, config, stage, 0)).committed
    whole = asked(notes)
    assert set(whole.values()) == {1} and len(whole) > 10 * CAP
    notes.unlink()

    process = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(store.root), str(file), stage],
        env={**os.environ, "PYTHONPATH": "."},
    )
    enough = 0.9 * len(whole)
    wait_until(
        lambda: asked(notes).total() >= enough,
        120,
        "nine tenths of the requests",
        every=0.002,
        process=process,
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = asked(notes)
    assert 0.9 * len(whole) <= len(first) < len(whole)  # it was killed before it came to an end
    notes.unlink()

    resumed = asyncio.run(run_stage(store, config, stage, 0, force=True)).committed
    again = asked(notes)
    assert first | again == whole  # the same requests, and each asked at most once in either run
    assert len(first & again) <= CAP
    for table in resumed.manifest.tables:
        assert resumed.scan(table).collect().equals(uninterrupted.scan(table).collect())
    assert not list(store.root.glob("trial/.requests/*"))
