"""Layers with their own way back compute what the library's do."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tasks.training import fused
from tasks.training.fused import CausalAttention, fuse_adapter, fuse_norms


class TwoLayers(nn.Module):
    """Two linear layers without a model around them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5, bias=False), nn.Linear(5, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.two(torch.tanh(self.one(x)))
        return out


def test_an_adapted_layer_and_its_gradients_are_those_of_peft() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(
            TwoLayers(), LoraConfig(r=3, lora_alpha=6, target_modules=["one", "two"], init_lora_weights=False)
        )
        x = torch.randn(2, 7, 6, requires_grad=True)
        seen = []
        for _ in range(2):
            out = model(x)
            model.zero_grad()
            x.grad = None
            out.square().sum().backward()
            seen.append([out, x.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
            fuse_adapter(model.base_model.model)
    assert len(seen[0]) == 6
    for plain, quick in zip(*seen, strict=True):
        torch.testing.assert_close(quick, plain)
    with model.disable_adapter():
        bare = TwoLayers()
        bare.load_state_dict(
            {f"{n}.weight": getattr(model.base_model.model, n).base_layer.weight for n in ("one", "two")}
        )
        assert torch.equal(model(x), bare(x))


@pytest.mark.parametrize("kept", [0, 1024])
@pytest.mark.parametrize("length", [1, 5, 128, 300])
def test_attention_and_its_gradients_are_those_of_torch(
    length: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over several blocks of queries, where key heads are shared, and of rows too long to keep the shares of."""
    monkeypatch.setattr(fused, "KEPT", kept)
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
