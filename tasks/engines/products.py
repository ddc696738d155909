"""Matrix products on a CPU by oneDNN and FBGEMM.

torch leaves products in float32 to MKL. On AMD's processors MKL does without AVX512, and for few rows it is slower than
oneDNN with weights in the order that oneDNN reads. In bfloat16 torch asks oneDNN itself.

A product of few rows takes as long as its weights take to arrive from memory. So weights in float32 that float16 holds
exactly, as it does those trained in bfloat16, are packed in float16. FBGEMM widens them as it multiplies, in float32.

Results are the same up to rounding. docs/benchmarks.md has the measurements, none of them on a processor of Intel.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def by_onednn(tensor: torch.Tensor) -> bool:
    """Whether products with this tensor are left to oneDNN here, and not to torch."""
    mkl_instead = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and mkl_instead


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., K] times the transpose of weight [N, K]: [..., N]. No gradients flow through it."""
    return multiply(x, weight) if by_onednn(x) else x @ weight.T


def add_product(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Add x [M, K] times the transpose of weight [N, K] to out [M, N], in place."""
    return out.add_(multiply(x, weight)) if by_onednn(x) else out.addmm_(x, weight.T)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] times the transpose of weight [N, K], as it is or `in_order`, by oneDNN."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def in_order(weight: torch.Tensor) -> torch.Tensor | None:
    """A copy of a weight [N, K] in the order in which oneDNN multiplies by it; None where oneDNN does not compute
    with its type."""
    native = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if weight.device.type != "cpu" or not (native or by_onednn(weight)):
        return None
    ordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return ordered


def in_float16(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any | None:
    """A float32 weight [N, K] with its bias [N], packed in float16; None where float16 does not hold it exactly, or
    torch has no FBGEMM."""
    if not by_onednn(weight) or "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    if not torch.equal(weight.half().float(), weight):
        return None
    return torch.ops.quantized.linear_prepack_fp16(weight.detach(), bias)


def packed(
    weight: torch.Tensor, bias: torch.Tensor | None, *, any_place: bool = False
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The linear layer x -> x W^T + b by a packed copy of its weight.

    Args:
        weight: [N, K].
        bias: [N], or None.
        any_place: a row's result must be the same to the bit at each place among as many rows. FBGEMM's is not.

    Returns:
        the layer, for x [..., M, K]; None where no packing helps.
    """
    if not any_place and (halves := in_float16(weight, bias)) is not None:
        return partial(torch.ops.quantized.linear_dynamic_fp16, W_prepack=halves)
    if (ordered := in_order(weight)) is not None:
        return partial(multiply, weight=ordered, bias=bias)
    return None


class Product(torch.autograd.Function):
    """y = x W^T in float32, with the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [..., K] and W [N, K]."""
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """dx and dW, where they are asked for."""
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        flat, rows = grad.reshape(-1, len(weight)), x.reshape(-1, x.shape[-1])
        return (
            product(flat, weight.T).view(x.shape) if of_x else None,
            product(flat.T, rows.T) if of_weight else None,
        )
