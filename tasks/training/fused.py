"""LoRA layers, norms and attention with their own way back, for training on a CPU.

Composed of single operations, an adapted layer passes over its output four times (cast, scale, add, cast) and keeps
copies of it for the way back, and a norm keeps three float32 copies of its input; torch's fused attention takes three
times as long back as forth. They are written out here: what they compute is the same up to rounding (tested against
the libraries' own).
"""

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tasks.engines.attention import register_attention

ATTENTION = "nlac_training_attention"
# A block of queries attends to the keys up to its end: what lies behind, half of all products, is mostly left out.
BLOCK = 128
# Tokens of a row up to which attention's shares are kept; there they are a third of all that a layer of SmolLM2 keeps.
KEPT = 1024


class AdaptedLinear(torch.autograd.Function):
    """y = x W^T + scale (x A^T) B^T, with W frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """x [..., K], weight [N, K], a [r, K], b [N, r]; products are in the dtype of `weight`."""
        flat = x.reshape(-1, x.shape[-1])
        low_a, low_b = a.to(weight.dtype), b.to(weight.dtype)
        low = flat @ low_a.T
        out = flat @ weight.T
        out.addmm_(low, low_b.T, alpha=scale)
        ctx.save_for_backward(flat, low, weight, low_a, low_b)
        ctx.scale, ctx.shape = scale, x.shape
        return out.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """dx, none for W, dA and dB in float32."""
        flat, low, weight, low_a, low_b = ctx.saved_tensors
        grad = grad.reshape(-1, weight.shape[0])
        low_grad = (grad @ low_b).mul_(ctx.scale)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ weight).addmm_(low_grad, low_a).view(ctx.shape)
        return grad_x, None, (low_grad.T @ flat).float(), (grad.T @ low).float().mul_(ctx.scale), None


class RootMeanSquareNorm(torch.autograd.Function):
    """y = w x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32; keeps x and one number a token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H] and weight [H]."""
        exact = x.to(torch.float32, copy=True)
        squared = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_()
        inverse = squared.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return exact.mul_(inverse).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """dx, and dw where the weight trains."""
        x, weight, inverse = ctx.saved_tensors
        unit = x.to(torch.float32, copy=True).mul_(inverse)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * unit).flatten(0, -2).sum(dim=0).to(weight.dtype)
        carried = grad.to(torch.float32, copy=True).mul_(weight)
        shared = (carried * unit).mean(dim=-1, keepdim=True)
        return carried.addcmul_(unit, shared, value=-1).mul_(inverse).to(x.dtype), grad_weight, None


class CausalAttention(torch.autograd.Function):
    """softmax(scale q k^T) v over positions up to each query's own; key heads are shared by groups of query heads.

    What a query gives each position is kept for the way back of short rows, and computed again for long ones: it grows
    with the square of the length, and would be most of what a long row takes.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query [R, H, T, D], key and value [R, G, T, D] of one dtype; returns [R, H, T, D]."""
        (rows, heads, length, width), groups = query.shape, key.shape[1]
        shape = (rows * groups, heads // groups, length, width)
        q = query.reshape(shape)
        k, v = (side.reshape(rows * groups, length, width) for side in (key, value))
        out = torch.empty_like(q)
        shares = []
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            share = _share(q, k, begin, end, scale)
            out[:, :, begin:end] = torch.bmm(share, v[:, :end]).view(rows * groups, -1, end - begin, width)
            if length <= KEPT:
                shares.append(share)
        ctx.save_for_backward(q, k, v, out, *shares)
        ctx.scale, ctx.shape = scale, (query.shape, key.shape)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Gradients of query, key and value."""
        q, k, v, out, *shares = ctx.saved_tensors
        grad, length, width = grad.reshape(q.shape), *q.shape[2:]
        # sum_j p_j dp_j = dout . out, for each query
        carried = (grad * out).sum(dim=-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, begin in enumerate(range(0, length, BLOCK)):
            end = min(begin + BLOCK, length)
            share = shares[number] if shares else _share(q, k, begin, end, ctx.scale)
            of_out = grad[:, :, begin:end].reshape(len(q), -1, width)
            grad_v[:, :end].baddbmm_(share.mT, of_out)
            lost = carried[:, :, begin:end].reshape(len(q), -1, 1)
            low = torch.baddbmm(lost, of_out, v[:, :end].mT, beta=-1).mul_(share)
            block = q[:, :, begin:end].reshape(len(q), -1, width)
            grad_q[:, :, begin:end] = torch.bmm(low, k[:, :end]).view(len(q), -1, end - begin, width)
            grad_k[:, :end].baddbmm_(low.mT, block)
        grad_q.mul_(ctx.scale)
        grad_k.mul_(ctx.scale)
        of_query, of_key = ctx.shape
        return grad_q.view(of_query), grad_k.view(of_key), grad_v.view(of_key), None


def _share(q: torch.Tensor, k: torch.Tensor, begin: int, end: int, scale: float) -> torch.Tensor:
    """What the queries from `begin` to `end` give each position up to `end`: [R * G, queries of a group, end]."""
    block = q[:, :, begin:end].reshape(len(q), -1, q.shape[3])
    hidden = torch.full((end - begin, end), float("-inf"), dtype=q.dtype).triu_(begin + 1)
    scores = torch.baddbmm(hidden.repeat(q.shape[1], 1), block, k[:, :end].mT, alpha=scale)
    return scores.softmax(dim=-1).to(q.dtype)


def causal_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`CausalAttention` with the signature of transformers' attention functions: [R, T, H, D] and no weights. Where
    there is a mask or a cache, the library's own function serves."""
    if attention_mask is not None or query.shape[2] != key.shape[2] or not kwargs.get("is_causal", True):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # With float32 weights autocast leaves the rotated sides in float32.
    out = CausalAttention.apply(query.to(value.dtype), key.to(value.dtype), value, scale)
    return out.transpose(1, 2).contiguous(), None


def register() -> str:
    """Make the attention known to transformers; returns the name for `attn_implementation`."""
    return register_attention(ATTENTION, causal_attention)


def fuse_adapter(model: PreTrainedModel) -> None:
    """Have a model's plain LoRA layers computed as above, in place; others stay as they are."""
    for module in model.modules():
        if isinstance(module, LoraLinear) and _plain(module):
            module.forward = _forward_of(module)


@torch.no_grad()
def fuse_norms(model: PreTrainedModel) -> None:
    """Have a model's root-mean-square norms computed as above, in place. A module that is called so is asked what it
    computes: families differ in it, and those that compute something else stay as they are."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float):
            weight = module.weight
            probe = torch.linspace(-1, 2, 2 * len(weight)).view(2, -1).to(weight.dtype)
            if torch.allclose(
                module(probe), RootMeanSquareNorm.apply(probe, weight, eps), rtol=1e-2, atol=1e-4
            ):
                module.forward = _norm_of(module, eps)


def _norm_of(module: torch.nn.Module, eps: float) -> Any:
    return lambda x: RootMeanSquareNorm.apply(x, module.weight, eps)


def _plain(module: LoraLinear) -> bool:
    return (
        len(module.active_adapters) == 1
        and not module.lora_variant
        and type(module.get_base_layer()) is torch.nn.Linear
        and module.get_base_layer().bias is None
    )


def _forward_of(module: LoraLinear) -> Any:
    base, (name,) = module.get_base_layer(), module.active_adapters
    a, b, scale = module.lora_A[name], module.lora_B[name], module.scaling[name]

    def forward(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if module.disable_adapters:
            return base(x)
        out: torch.Tensor = AdaptedLinear.apply(
            x.to(base.weight.dtype), base.weight, a.weight, b.weight, scale
        )
        return out

    return forward
