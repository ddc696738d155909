"""Packed weights compute what the weights compute, and never outlive them."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tasks.engines.local.packed_weights import PackedLinear, pack
from tasks.engines.products import by_onednn

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def made(dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, tie_word_embeddings=True,
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM(shape).to(dtype).eval().requires_grad_(False)
    return model


def packed_layers(model: PreTrainedModel) -> int:
    return sum(isinstance(module, PackedLinear) and module.packed is not None for module in model.modules())


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this processor"
)
def test_packed_weights_give_the_same_bits_and_a_copy_has_weights_of_its_own() -> None:
    model = made(torch.bfloat16)
    before = model(IDS).logits
    pack(model)
    assert packed_layers(model) == 2 * 7 + 1
    assert torch.equal(model(IDS).logits, before)

    other = copy.deepcopy(model)
    assert not packed_layers(other)
    assert torch.equal(other(IDS).logits, before)
    other.model.layers[0].mlp.up_proj.weight.data.mul_(-1)  # as merging an adapter does
    changed = other(IDS).logits
    assert not torch.equal(changed, before)
    pack(other)
    assert packed_layers(other) == packed_layers(model) and torch.equal(other(IDS).logits, changed)
    assert torch.equal(model(IDS).logits, before)


@pytest.mark.skipif(not by_onednn(torch.zeros(1)), reason="torch has no oneDNN beside MKL here")
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_packed_weights_in_float32_give_the_same_up_to_rounding(stored: torch.dtype) -> None:
    model = made(stored).float()
    before = model(IDS).logits
    pack(model)
    assert packed_layers(model) == 2 * 7 + 1
    torch.testing.assert_close(model(IDS).logits, before, rtol=1e-5, atol=1e-6)


def test_other_types_stay_as_they_are() -> None:
    model = made(torch.float64)
    pack(model)
    assert not packed_layers(model)
