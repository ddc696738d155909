"""An iteration of full fine-tuning whose roles vLLM plays, in its place a server that tells if it is not alone."""

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.reliability.configurations import STAND_IN
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.engines.vllm.server_records import servers
from tasks.engines.vllm.servers import serving
from tasks.pipeline.iterations import run_iteration, run_stages
from tests.support.iterations import ROLES, small_config


@pytest.mark.long
def test_iterations_of_full_weights_start_one_server_after_another_and_none_beside_training(
    store: Store, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), str(PROJECT_ROOT)]))
    monkeypatch.setenv("NLAC_STAND_IN_GPU", str(tmp_path / "gpu"))
    config = small_config(
        tiny_checkpoint,
        model={"train": "full"},
        engines={"served": {"backend": "openai", "serve": {"start_seconds": 600}, "max_batch": 4}},
        roles={role: {"engine": "served", "max_tokens": 200} for role in ROLES},
        pools={"shared_gpu": True},
    )

    def starts() -> int:
        (file,) = store.cache_dir.glob("servers/*/starts.jsonl")
        return len(file.read_text().splitlines())

    with serving(config.engines.values(), config.model, store.cache_dir):
        asyncio.run(run_iteration(store, config))
        assert starts() == 3, "the model's own weights, the new critic, the new policy"
        asyncio.run(run_stages(store, config, ["rollout", "bellman-targets", "cot-correction"], 1))
        assert starts() == 4, "the policy is there still; bellman-targets asks it first, then the target"
        asyncio.run(run_stages(store, config, ["critic-sft"], 1))
        assert list(servers(store.cache_dir)) == []
