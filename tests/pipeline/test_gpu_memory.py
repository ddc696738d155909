"""Estimates of memory: against the model cards, against what training really keeps, and what they refuse."""

import json
from pathlib import Path

import pytest
import torch
from peft.helpers import disable_input_dtype_casting
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.gpu import SHAPES
from schemas.config import Config, ModelSection
from schemas.load import PROJECT_ROOT, load_config
from tasks.algorithms import algorithm_of
from tasks.engines.architectures import KNOWN, architecture_of, read_architecture
from tasks.engines.models import MissingModel, ModelError
from tasks.pipeline.gpu_memory import GIB, LOGITS, Footprint, footprints, stored_per_token
from tasks.training.fused.fused_layers import fuse_adapter
from tasks.training.fused.packing import hidden_states
from tasks.training.lora import fresh_adapter
from tasks.training.loss import autocast
from tasks.training.model import load_base
from tasks.training.processes import ALONE
from tasks.training.trainable import checkpoint_layers

CLUSTER = PROJECT_ROOT / "configs" / "cluster"


def estimated(config: Config, gib: float = 80, gpus: int = 8) -> dict[str, Footprint]:
    found = footprints(config, algorithm_of(config), gib * GIB, gpus)
    return {one.user: one for one in found}


def changed(file: str, **changes: dict[str, object]) -> Config:
    content = load_config(CLUSTER / file).model_dump()
    for section, fields in changes.items():
        content[section] |= fields
    return Config.model_validate(content)


def test_parameters_are_those_of_the_model_cards() -> None:
    stated = {"Qwen/Qwen2.5-7B-Instruct": 7.61e9, "Qwen/QwQ-32B": 32.5e9}
    assert {name: shape.parameters for name, shape in KNOWN.items()} == pytest.approx(stated, rel=0.01)


def test_a_model_at_hand_is_read_from_its_files(byte_checkpoint: Path) -> None:
    shape = architecture_of(ModelSection(name=str(byte_checkpoint)))
    model = AutoModelForCausalLM.from_pretrained(byte_checkpoint)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    adapted = fresh_adapter(model, ModelSection(name="-", lora={"r": 4, "alpha": 8}), seed=0)
    assert shape.adapter(4) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_a_model_that_is_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingModel, match=r"shape of some/model is not known .*hf download some/model"):
        architecture_of(ModelSection(name="some/model"))


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"num_attention_heads": 2}'])
def test_a_config_that_states_no_shape_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"^model\.name: .*config\.json does not say the shape of a decoder"):
        architecture_of(ModelSection(name=str(tmp_path)))


def test_of_a_model_that_sees_the_decoder_counts() -> None:
    stated = {
        "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "vocab_size": 100,
    }  # fmt: skip
    assert read_architecture({"text_config": stated, "vision_config": {}}) == read_architecture(stated)


def kept_per_token(section: ModelSection, tokens: int, *, fused: bool, recomputed: bool) -> float:
    """Bytes that a forward pass really keeps for the backward pass, of each token, parameters left out."""
    model = load_base(section, None if fused else ALONE)
    fresh_adapter(model, section, seed=0)
    if fused:
        fuse_adapter(model)
    if recomputed:
        checkpoint_layers(model)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        disable_input_dtype_casting(model),
        autocast(model, getattr(torch, section.dtype)),
    ):
        hidden_states(model, [[number % 60 for number in range(tokens)]], 0)
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own) / tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("recomputed", [False, True])
def test_what_a_layer_keeps_is_estimated_within_a_tenth(
    tmp_path: Path, dtype: str, fused: bool, recomputed: bool
) -> None:
    """The difference that a layer makes, at a shape between those of a small and a large model."""
    kept, said = [], []
    for layers in (2, 3):
        folder = tmp_path / str(layers)
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64, hidden_size=192, intermediate_size=640, num_hidden_layers=layers,
                num_attention_heads=6, num_key_value_heads=2,
            )
        ).save_pretrained(folder)  # fmt: skip
        section = {"name": str(folder), "device": "cpu", "dtype": dtype, "lora": {"r": 4, "alpha": 8}}
        trainer = {"gradient_checkpointing": recomputed} | (
            {} if fused else {"processes": 2, "shard": "fsdp"}
        )
        config = Config.model_validate({"model": section, "trainer": trainer})
        kept.append(kept_per_token(config.model, 512, fused=fused, recomputed=recomputed))
        said.append(stored_per_token(config, architecture_of(config.model)))
    assert said[1] - said[0] == pytest.approx(kept[1] - kept[0], rel=0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("run", ["plain", "fused"])
def test_what_a_gpu_held_is_estimated_within_a_sixth(real_model: Path, run: str, shape: str) -> None:
    """Of a micro-batch, logits included; `benchmarks.gpu` measured it."""
    measured = json.loads((PROJECT_ROOT / "docs" / "results" / "gpu.json").read_text())[run]["shapes"][shape]
    trainer = {} if run == "fused" else {"processes": 2, "shard": "fsdp"}
    config = Config.model_validate({"model": {"dtype": "bfloat16"}, "trainer": trainer})
    made = read_architecture(json.loads((real_model / "config.json").read_text()) | SHAPES[shape])
    estimate = stored_per_token(config, made) + LOGITS / measured["micro_batch_tokens"]
    assert estimate == pytest.approx(measured["bytes_per_token"], rel=1 / 6)


@pytest.mark.parametrize("file", sorted(path.name for path in CLUSTER.glob("*.yaml")))
def test_shipped_cluster_files_fit_eight_gpus_of_80_gb_and_leave_none_idle(file: str) -> None:
    found = estimated(load_config(CLUSTER / file), gib=74.5)  # 80 GB
    assert found.keys() == {"training", "local"}
    assert all(one.fits and one.gpus == 8 for one in found.values())


@pytest.mark.parametrize(("file", "gib"), [("one_gpu_24gb.yaml", 22.3), ("one_gpu_80gb.yaml", 74.5)])
def test_shipped_files_of_one_gpu_fit_it_and_need_no_other_server(file: str, gib: float) -> None:
    config = load_config(PROJECT_ROOT / "configs" / "examples" / file)
    found = estimated(config, gib, gpus=1)
    assert found.keys() == {"training", "local"}
    assert all(one.fits and one.gpus == 1 for one in found.values())
    assert config.engines.keys() == {"local"} and config.environment.model is None


@pytest.mark.parametrize(
    ("changes", "gib", "gpus", "user", "remedy"),
    [
        ({}, 80, 4, "training", "trainer.processes: lower it to 4"),
        ({}, 80, 4, "local", "data_parallel_size: lower it to 2"),
        ({}, 24, 8, "local", "engines.local.options.tensor_parallel_size: raise it"),
        ({"model": {"context_length": 300_000}}, 80, 8, "local", "or lower model.context_length"),
        ({}, 40, 8, "training", "model.context_length: lower it"),
        ({"trainer": {"gradient_checkpointing": False}}, 80, 8, "training", "gradient_checkpointing: set it to true"),
        ({"policy": {"micro_batch_rows": 4}}, 80, 8, "training", "policy.micro_batch_rows: lower them"),
        ({"trainer": {"processes": 1, "shard": "none"}}, 80, 8, "training", "set processes to 8 and shard to fsdp"),
        ({"model": {"train": "full"}}, 80, 8, "training", "model.train: set it to lora"),
        ({}, 80, 1, "training", "trainer: set processes to 1 and shard to none, model.context_length: lower it"),
        ({}, 24, 1, "training", "shard to none, model.name: take a smaller model"),
        ({}, 80, 1, "local", "tensor_parallel_size: lower it to 1, engines.local.options.data_parallel_size: lower it"),
        ({}, 24, 1, "local", "data_parallel_size: lower it to 1, model.name: take a smaller model"),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_the_field_to_change(
    changes: dict[str, dict[str, object]], gib: float, gpus: int, user: str, remedy: str
) -> None:
    found = estimated(changed("qwq-32b-math.yaml", **changes), gib, gpus)[user]
    assert not found.fits and remedy in found.remedy


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_no_more_gpus_are_planned_with_than_the_host_has(gpus: int) -> None:
    found = estimated(load_config(CLUSTER / "qwen2.5-7b-math.yaml"), 80, gpus)
    assert {one.gpus for one in found.values()} == {gpus}
    assert (
        found["training"].bytes >= estimated(load_config(CLUSTER / "qwen2.5-7b-math.yaml"))["training"].bytes
    )


def test_idle_gpus_are_told() -> None:
    engine = load_config(CLUSTER / "qwen2.5-7b-math.yaml").engines["local"]
    options = {**engine.options, "data_parallel_size": 4}
    config = changed("qwen2.5-7b-math.yaml", engines={"local": {**engine.model_dump(), "options": options}})
    assert "4 GPUs idle: raise engines.local.options.data_parallel_size" in estimated(config)["local"].remedy


def test_weights_that_one_host_does_not_hold_in_training_fit_several() -> None:
    full = {"train": "full", "context_length": 8192}
    alone = estimated(changed("qwq-32b-math.yaml", model=full))["training"]
    together = estimated(changed("qwq-32b-math.yaml", model=full, trainer={"hosts": 4}))["training"]
    assert not alone.fits and "raise trainer.hosts" in alone.remedy
    assert together.fits and together.gpus == 8
