"""The benchmark of the pipeline's overhead: its instant iteration."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.overhead import instant
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
from tests.support.tiny import make_tiny_checkpoint


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
