"""Layers with their own backward pass compute what the library's do."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tasks.training.fused import attention
from tasks.training.fused.attention import CausalAttention
from tasks.training.fused.fused_layers import fuse_adapter
from tasks.training.fused.fused_norms import fuse_norms


@pytest.mark.parametrize(
    ("products", "close"), [("torch", {}), ("onednn", {"rtol": 1e-4, "atol": 1e-4})]
)  # the library's own gradients are 3e-4 off here, as those in float64 show
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_adapted_layers_and_their_gradients_are_those_of_peft(
    activation: str, products: str, close: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a decoder, where some layers read one tensor, and others one of their own. A gated MLP stores two tensors of
    its width; one with another activation is left as it is. A norm's output is not stored."""
    if products == "torch":
        monkeypatch.setattr("tasks.engines.products.by_onednn", lambda tensor: False)
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, hidden_act=activation,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bare = LlamaForCausalLM(config)
        for name, parameter in bare.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(parameter, 0.5, 2.0)
        model = get_peft_model(
            copy.deepcopy(bare),
            LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", init_lora_weights=False),
        )
    base = model.base_model.model
    for norms in (bare, base):
        fuse_norms(norms)
    ids = torch.tensor([[1, 5, 3, 2], [4, 4, 0, 9]])
    seen = []
    for _ in range(2):
        out = base(input_ids=ids).logits
        model.zero_grad()
        out.square().sum().backward()
        seen.append([out, *(p.grad for p in model.parameters() if p.requires_grad)])
        fuse_adapter(base)
    assert len(seen[0]) == 1 + 2 * 2 * 7
    for plain, quick in zip(*seen, strict=True):
        torch.testing.assert_close(quick, plain, **close)
    with model.disable_adapter():
        assert torch.equal(base(input_ids=ids).logits, bare(input_ids=ids).logits)
    layer = base.model.layers[0]
    groups = [layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.down_proj]
    assert [len(first.forward.func.__self__.layers) for first in groups] == [3, 1, 2, 1]
    kept: dict[int, torch.Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor
    ):
        x = layer.post_attention_layernorm(torch.randn(5, 8, requires_grad=True))
        layer.mlp(x)
    assert x.data_ptr() not in kept
    wide = [tensor for tensor in kept.values() if tensor.shape == (5, 12)]
    assert len(wide) == (2 if activation == "silu" else 4)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    layer.mlp.gate_proj(x)
    torch.testing.assert_close(layer.mlp.up_proj(y), LoraLinear.forward(layer.mlp.up_proj, y))


@pytest.mark.parametrize("kept", [0, 1024])
@pytest.mark.parametrize("length", [1, 5, 128, 300])
def test_attention_and_its_gradients_are_those_of_torch(
    length: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over several blocks of queries, where key heads are shared, and of rows too long to store the weights of."""
    monkeypatch.setattr(attention, "STORED", kept)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sides = [torch.randn(2, heads, length, 8, requires_grad=True) for heads in (6, 2, 2)]
        weights = torch.randn(2, 6, length, 8)
    seen = []
    for attend in (
        lambda q, k, v: CausalAttention.apply(q, k, v, 0.3),
        lambda q, k, v: nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=0.3, enable_gqa=True
        ),
    ):
        out = attend(*sides)
        seen.append([out, *torch.autograd.grad((out * weights).sum(), sides)])
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_norm_and_its_gradients_are_those_of_the_library_and_another_kind_is_left_alone() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours, theirs, other = LlamaRMSNorm(16), LlamaRMSNorm(16), GemmaRMSNorm(16)
        for norm in (ours, theirs, other):
            norm.weight.data = torch.linspace(0.5, 2, 16)
        fuse_norms(nn.ModuleList([ours, other]))
        assert "forward" in vars(ours) and "forward" not in vars(other)
        x, weights = torch.randn(2, 3, 16, requires_grad=True), torch.randn(2, 3, 16)
    seen = []
    for norm in (ours, theirs):
        out = norm(x)
        seen.append([out, *torch.autograd.grad((out * weights).sum(), [x, norm.weight])])
    for mine, expected in zip(*seen, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
