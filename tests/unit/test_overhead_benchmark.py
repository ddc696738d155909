"""The benchmark of the pipeline's overhead: how it accounts for seconds, and its instant iteration."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import instant
from benchmarks.iteration_seconds import PARENT, sweep
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tests.support.tiny import make_tiny_checkpoint


def test_every_instant_belongs_to_what_began_last() -> None:
    intervals = [
        (0.0, 10.0, PARENT, "around"),
        (2.0, 9.5, PARENT, "logging"),
        (1.0, 4.0, "a", "wait"),
        (4.0, 9.0, "a", "flow"),
        (5.0, 7.0, "a", "compute"),
        (6.0, 6.5, "a", "commit"),
        (20.0, 30.0, "b", "later"),
    ]
    assert sweep(intervals, 0.0, 10.0) == {
        PARENT: {"around": 1.5, "logging": 0.5},
        "a": {"wait": 3.0, "flow": 3.0, "compute": 1.5, "commit": 0.5},
    }


def test_the_instant_iteration_commits_all_that_a_real_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, instant.TRAINER, SimpleNamespace(train=instant.train))
    monkeypatch.setattr(instant, "PARAMETERS", 10)
    config = instant.instant_config("trial", str(make_tiny_checkpoint(tmp_path / "tiny")))
    config = config.model_copy(update={"model": config.model.model_copy(update={"context_length": 6000})})
    done = asyncio.run(run_iteration(Store(tmp_path / "data"), config))
    assert [result.committed.manifest.stage for result in done][-1] == "evaluation"
    trained = {m.stage: set(m.adapters) for m in (r.committed.manifest for r in done) if m.adapters}
    assert trained == {"critic-sft": {"critic", "target"}, "policy-distillation": {"policy", "target"}}


def test_every_function_that_the_stopwatch_watches_is_there(tmp_path: Path) -> None:
    environment = {**os.environ, "NLAC_DATA": str(tmp_path), "PREFECT__FLOW_RUN_ID": "run"}
    watched = "import benchmarks.timed_flows as t; print(t.rollout.fn.__name__, t.iteration.fn.__name__)"
    done = subprocess.run([sys.executable, "-c", watched], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["rollout", "iteration"], done.stderr
    assert json.loads((tmp_path / ".timing" / "run.json").read_text())
