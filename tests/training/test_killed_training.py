"""A training stage that runs in two processes, killed: they end with it, and the stage goes on from its checkpoint."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.config import Config
from schemas.load import dump_config
from storage.store import Store
from tasks.pipeline.decision import decide
from tasks.pipeline.runner import StageResult
from tasks.training import trainer
from tests.support.waiting import wait_until

ITERATION = """
import asyncio, sys
from pathlib import Path
from schemas.load import load_config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
asyncio.run(run_iteration(Store(Path(sys.argv[1])), load_config(sys.argv[2])))
"""


@pytest.mark.long
def test_a_killed_stage_of_two_processes_goes_on_in_one(
    store: Store,
    make_config: Callable[..., Config],
    iterate: Callable[..., list[StageResult]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = {"epochs": 60, "batch_rows": 4, "micro_batch_rows": 2}
    config = make_config(critic=many, trainer={"processes": 2, "checkpoint_steps": 1})
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    process = subprocess.Popen(
        [sys.executable, "-c", ITERATION, str(store.root), str(file)], env={**os.environ, "PYTHONPATH": "."}
    )
    checkpoints = "trial/.checkpoints/critic-sft-*.pt"
    wait_until(lambda: list(store.root.glob(checkpoints)), 240, "a checkpoint", every=0.02, process=process)
    started = psutil.Process(process.pid).children(recursive=True)
    assert sum("tasks.training.worker" in " ".join(p.cmdline()) for p in started) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    assert store.committed("trial", "critic-sft", 0) is None

    taken: list[int] = []
    take_step = trainer.take_step

    def counted(*arguments: Any, **named: Any) -> Any:
        taken.append(arguments[3])
        return take_step(*arguments, **named)

    monkeypatch.setattr(trainer, "take_step", counted)
    alone = config.model_copy(update={"trainer": config.trainer.model_copy(update={"processes": 1})})
    iterate(alone)
    made = store.committed("trial", "critic-sft", 0)
    assert made
    steps = made.scan("training_steps").collect()["step"].to_list()
    assert steps == list(range(len(steps)))
    assert 0 < taken[0] < len(steps), "it went on behind the last checkpoint"
    assert not list(store.root.glob("trial/.checkpoints/*"))
    assert decide(store, config, "critic-sft", 0, frozen=False).reuse, (
        "how it is computed makes nothing stale"
    )
