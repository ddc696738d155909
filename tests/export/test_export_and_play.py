"""A trained policy leaves the program and plays: the real small model with a LoRA adapter that changes it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from typer.testing import CliRunner, Result

from flows.cli.main import app
from schemas.config import Config
from storage.store import Store
from tasks.engines.models import resolve_model
from tasks.pipeline.iterations import begin_iteration
from tasks.training.lora import adapter_tensors, fresh_adapter, save_adapter
from tasks.training.model import load_base
from tests.support import cli
from tests.support.committed import commit_rows

pytestmark = pytest.mark.model

CONFIG = Config.model_validate(
    {
        "run": "trial",
        "rollout": {"max_steps": 2},
        "roles": {"policy": {"max_tokens": 24, "structured": True}},
        "model": {"dtype": "bfloat16", "lora": {"r": 4, "alpha": 8}},
    }
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run whose iteration 0 has a policy with random LoRA weights."""
    root = tmp_path_factory.mktemp("export")
    model = fresh_adapter(load_base(CONFIG.model), CONFIG.model, seed=0)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(tensor.shape, generator=generator) * 0.02
        for name, tensor in adapter_tensors(model).items()
    }
    save_adapter(model, tensors, root / "adapter", CONFIG.model.name)
    store = Store(root / "data")
    begin_iteration(store, CONFIG, 0)
    commit_rows(store, "policy-distillation", 0, {}, adapters={"policy": root / "adapter"})
    return store


def nlac(store: Store, *words: str) -> Result:
    return cli.nlac(store, *words, "--run", "trial")


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(torch.tensor([[1, 17, 42, 256]])).logits.float()


def loaded(folder: str | Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_an_exported_policy_loads_as_an_adapter_and_as_a_checkpoint(store: Store, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    apart, merged = tmp_path / "adapter", tmp_path / "merged"
    result = nlac(store, "export", "policy", str(apart))
    assert result.exit_code == 0, result.stderr
    assert nlac(store, "export", "policy", str(merged), "--merge").exit_code == 0

    base = logits(loaded(resolve_model(CONFIG.model)))
    adapted = logits(AutoPeftModelForCausalLM.from_pretrained(apart, dtype=torch.float32))
    assert (adapted - base).abs().mean() > 0.1
    assert torch.allclose(logits(loaded(merged)), adapted, atol=1e-2)
    tokenizer = AutoTokenizer.from_pretrained(merged)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    note = json.loads((merged / "nlac.json").read_text())
    committed = store.committed("trial", "policy-distillation", 0)
    assert committed is not None
    assert note["policy_version"] == committed.manifest.adapters["policy"].version
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter", "merged"]


def test_the_untrained_model_can_be_exported_as_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "base"
    words = ["export", "policy", str(out), "--merge", "--dtype", "bfloat16"]
    result = CliRunner().invoke(app, words, env={"NLAC_DATA": str(tmp_path / "data")})
    assert result.exit_code == 0, result.stderr
    assert torch.equal(logits(loaded(out)), logits(loaded(resolve_model(CONFIG.model))))


def test_play_shows_an_episode_turn_by_turn(store: Store) -> None:
    first = nlac(store, "play", "--seed", "3")
    assert first.exit_code == 0, first.stderr
    assert "played by policy@00000:" in first.stdout
    assert "--- step 0: the policy sees" in first.stdout
    assert "after 2 steps; reward" in first.stdout or "after 1 steps; reward" in first.stdout
    assert not list(store.run_dir("trial").glob("rollout"))


def test_play_of_an_unknown_task_names_some_that_exist(store: Store) -> None:
    result = nlac(store, "play", "--task", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr and "it has" in result.stderr
