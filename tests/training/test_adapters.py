"""Adapters on disk, and target parameters."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from schemas.config import LoraSection, ModelSection
from tasks.training.adapters import adapter_digest
from tasks.training.ema import TargetParameters
from tasks.training.lora import adapter_tensors, fresh_adapter, load_adapter, save_adapter
from tasks.training.model import load_base
from tasks.training.records import TrainingError

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def saved(section: ModelSection, seed: int, path: Path) -> PeftModel:
    """A fresh adapter with something in B, written to `path`."""
    model = fresh_adapter(load_base(section), section, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    save_adapter(model, adapter_tensors(model), path, section.name)
    return model


def test_a_fresh_adapter_computes_what_the_base_does(model_section: ModelSection) -> None:
    base = load_base(model_section)
    before = base(input_ids=IDS).logits
    model = fresh_adapter(base, model_section, seed=3)
    assert torch.equal(model(input_ids=IDS).logits, before)
    assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)


def test_a_fresh_adapter_follows_from_the_seed_and_leaves_the_process_random_state(
    model_section: ModelSection, tmp_path: Path
) -> None:
    torch.rand(1)  # a state that no seeding leaves behind
    state = torch.random.get_rng_state()
    for number, seed in enumerate((3, 3, 4)):
        saved(model_section, seed, tmp_path / str(number))
        torch.rand(1)
    digests = [adapter_digest(tmp_path / str(number)) for number in range(3)]
    assert digests[0] == digests[1] != digests[2]
    torch.random.set_rng_state(state)
    drawn = torch.rand(1)
    torch.random.set_rng_state(state)
    fresh_adapter(load_base(model_section), model_section, seed=3)
    assert torch.equal(torch.rand(1), drawn)


def test_a_saved_adapter_reloads_in_peft_to_the_same_logits(
    model_section: ModelSection, tmp_path: Path
) -> None:
    model = saved(model_section, 3, tmp_path / "a")
    plain = AutoModelForCausalLM.from_pretrained(model_section.name)
    assert not torch.allclose(plain(input_ids=IDS).logits, model(input_ids=IDS).logits, atol=1e-2)
    again = PeftModel.from_pretrained(plain, str(tmp_path / "a"))
    torch.testing.assert_close(again(input_ids=IDS).logits, model(input_ids=IDS).logits)
    ours = load_adapter(load_base(model_section), tmp_path / "a", model_section)
    torch.testing.assert_close(ours(input_ids=IDS).logits, model(input_ids=IDS).logits)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_digest_is_of_weights_and_hyperparameters_not_of_places(
    model_section: ModelSection, tmp_path: Path
) -> None:
    saved(model_section, 3, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    config |= {
        "base_model_name_or_path": "/elsewhere",
        "target_modules": list(reversed(config["target_modules"])),
    }
    (tmp_path / "b" / "adapter_config.json").write_text(json.dumps(config))
    assert adapter_digest(tmp_path / "a") == adapter_digest(tmp_path / "b")
    (tmp_path / "b" / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 99}))
    assert adapter_digest(tmp_path / "a") != adapter_digest(tmp_path / "b")


def test_an_adapter_of_another_rank_or_none_at_all_is_refused(
    model_section: ModelSection, tmp_path: Path
) -> None:
    saved(model_section, 3, tmp_path / "a")
    wider = model_section.model_copy(update={"lora": LoraSection(r=8, alpha=8)})
    with pytest.raises(TrainingError, match=r"model\.lora\.r is 8, .* has 4"):
        load_adapter(load_base(wider), tmp_path / "a", wider)
    with pytest.raises(TrainingError, match="no adapter there"):
        load_adapter(load_base(wider), tmp_path / "none", wider)
    with pytest.raises(TrainingError, match="no adapter there"):
        adapter_digest(tmp_path / "none")
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    with pytest.raises(TrainingError, match="no readable adapter"):
        adapter_digest(tmp_path / "a")


def test_a_torn_adapter_is_refused_by_name(model_section: ModelSection, tmp_path: Path) -> None:
    saved(model_section, 3, tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TrainingError, match=r"/a: this adapter can't be read"):
        load_adapter(load_base(model_section), tmp_path / "a", model_section)


def test_the_target_moves_as_computed_by_hand() -> None:
    start = {"a": torch.tensor([1.0, 0.0])}
    target = TargetParameters(start, tau=0.25)
    target.update({"a": torch.tensor([5.0, 4.0])})  # .75 * 1 + .25 * 5 = 2, .75 * 0 + .25 * 4 = 1
    assert target.tensors["a"].tolist() == [2.0, 1.0]
    target.update({"a": torch.tensor([6.0, -3.0])})  # .75 * 2 + .25 * 6 = 3, .75 * 1 - .75 = 0
    assert target.tensors["a"].tolist() == [3.0, 0.0]
    assert target.moved == pytest.approx(1 - 0.75**2)
    assert start["a"].tolist() == [1.0, 0.0]


def test_the_target_is_float32_over_bfloat16_parameters() -> None:
    """A thousandth of a step near 1 is below bfloat16's resolution and would never arrive."""
    target = TargetParameters({"a": torch.ones(1, dtype=torch.bfloat16)}, tau=0.001)
    target.update({"a": torch.full((1,), 2.0, dtype=torch.bfloat16)})
    assert target.tensors["a"].item() == pytest.approx(1.001, rel=1e-6)
