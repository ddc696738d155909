"""The arithmetic of LoRA layers and gated MLPs, with their own backward pass.

Composed of single operations, an adapted layer passes over its output four times (cast, scale, add, cast) and stores
copies of it, and a gated MLP stores four tensors of its width where two suffice. The result is the same up to rounding
(tested against the libraries').
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import silu

from tasks.engines.products import add_product, product
from tasks.training.fused.fused_norms import Normed, normed


class AdaptedLinears(torch.autograd.Function):
    """y_i = x W_i^T + s_i (x A_i^T) B_i^T of layers that read the same x, with the W_i frozen.

    The low-rank products with x are done together, for all layers. Where x is a norm's output, the backward pass
    recomputes it from the norm's input, which the norm stores anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, source: Normed | None, scales: Sequence[float], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [..., K] and what it is the norm of, then all W_i [N_i, K], all A_i [r_i, K] and all B_i [N_i, r_i];
        products are in the dtype of the W_i."""
        outs, stored = _forward(x, scales, tensors)
        norm_input, weight, eps = source or (x, None, None)
        ctx.save_for_backward(norm_input, weight, *stored)
        ctx.scales, ctx.eps, ctx.dtype = scales, eps, x.dtype
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """dx, none for the W_i, dA_i and dB_i in float32."""
        x, weight, *stored = ctx.saved_tensors
        if weight is not None:
            x = normed(x, weight, ctx.eps)[0].to(ctx.dtype)
        grad_x, of_tensors = _backward(grads, x, ctx.scales, stored, ctx.needs_input_grad[0])
        return grad_x, None, None, *of_tensors


class GatedLinear(torch.autograd.Function):
    """y = h W^T + s (h A^T) B^T with h = silu(g) u and W frozen; g and u are stored, and h is recomputed."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, scale: float, *tensors: torch.Tensor
    ) -> torch.Tensor:
        """gate and up [..., K], then W [N, K], A [r, K] and B [N, r]."""
        (out,), stored = _forward(silu(gate).mul_(up), (scale,), tensors)
        ctx.save_for_backward(gate, up, *stored)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """dg, du, none for W, dA and dB in float32."""
        gate, up, *stored = ctx.saved_tensors
        active = silu(gate)
        grad_h, of_tensors = _backward((grad,), active * up, (ctx.scale,), stored)
        assert grad_h is not None
        grad_up = active.mul_(grad_h)
        return torch.ops.aten.silu_backward(grad_h.mul_(up), gate), grad_up, None, *of_tensors


def _forward(
    x: torch.Tensor, scales: Sequence[float], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The y_i, and what the backward pass needs beside x: x A^T, all A in one, the W_i and the B_i."""
    count = len(scales)
    weights, a, b = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
    dtype = weights[0].dtype
    flat = x.reshape(-1, x.shape[-1])
    all_a, low_b = torch.cat(list(a)).to(dtype), [one.to(dtype) for one in b]
    low = flat @ all_a.T
    parts = low.split([len(one) for one in a], dim=1)
    outs = (
        product(flat, weight).addmm_(part, one.T, alpha=scale).view(*x.shape[:-1], -1)
        for weight, part, one, scale in zip(weights, parts, low_b, scales, strict=True)
    )
    return tuple(outs), [low, all_a, *weights, *low_b]


def _backward(
    grads: Sequence[torch.Tensor],
    x: torch.Tensor,
    scales: Sequence[float],
    stored: Sequence[torch.Tensor],
    of_x: bool = True,
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """dx, if it is asked for, and of the tensors: none for the W_i, dA_i and dB_i in float32."""
    low, all_a, *rest = stored
    weights, low_b = rest[: len(scales)], rest[len(scales) :]
    flat = x.reshape(-1, x.shape[-1])
    ranks = [one.shape[1] for one in low_b]
    grad_x, low_grads, grads_b = None, [], []
    parts = low.split(ranks, dim=1)
    for grad, weight, one, part, scale in zip(grads, weights, low_b, parts, scales, strict=True):
        grad = grad.reshape(-1, len(weight))
        low_grads.append((grad @ one).mul_(scale))
        grads_b.append((grad.T @ part).float().mul_(scale))
        if of_x:
            grad_x = product(grad, weight.T) if grad_x is None else add_product(grad_x, grad, weight.T)
    low_grad = torch.cat(low_grads, dim=1)
    if grad_x is not None:
        grad_x = grad_x.addmm_(low_grad, all_a).view(x.shape)
    grads_a = (low_grad.T @ flat).float().split(ranks)
    return grad_x, [*[None] * len(scales), *grads_a, *grads_b]
