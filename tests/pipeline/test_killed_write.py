"""A stage killed by SIGKILL while it writes: nothing half-written is visible, and the next run goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import dump_config
from storage.store import Store
from storage.verify import verify
from tasks.pipeline.runner import StageResult
from tests.support.waiting import wait_until

STAGE = """
import asyncio, sys
from pathlib import Path
from schemas.load import load_config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
asyncio.run(run_iteration(Store(Path(sys.argv[1])), load_config(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_stage_killed_mid_write_leaves_nothing_and_the_next_run_goes_on(
    store: Store,
    make_config: Callable[..., Config],
    iterate: Callable[..., list[StageResult]],
    tmp_path: Path,
) -> None:
    config = make_config(rollout={"episodes": 400, "max_steps": 6})
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    process = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(store.root), str(file)], env={**os.environ, "PYTHONPATH": "."}
    )
    half_written = "trial/.staging/*/*.parquet"
    wait_until(lambda: list(store.root.glob(half_written)), 120, "a table", every=0, process=process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(store.root.glob(half_written))  # it was in the middle of it
    assert store.current("trial", 0).stages == {}
    assert not list(store.root.glob("trial/rollout/**/*.parquet"))
    assert verify(store) == []

    results = iterate(config)
    assert not any(r.reused for r in results)
    assert results[0].committed.scan("episodes").collect().height == 400
    assert not list(store.root.glob("trial/.staging/*"))
