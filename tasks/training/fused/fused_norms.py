"""Root-mean-square norms with their own backward pass.

The library's norm stores three float32 copies of its input, and whoever reads its output stores that too. This one
stores its input and one number per token, and lets readers recompute its output (`NORMED`). The result is the same up
to rounding (tested against the library's).
"""

from collections.abc import Callable
from typing import Any

import torch

# Attribute of a norm's output: the input, weight and epsilon from which a reader can recompute it.
NORMED = "nlac_normed"
Normed = tuple[torch.Tensor, torch.Tensor, float]


class RootMeanSquareNorm(torch.autograd.Function):
    """y = w x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H] and weight [H]."""
        y, inverse = normed(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """dx, and dw where the weight trains."""
        x, weight, inverse = ctx.saved_tensors
        unit = x.to(torch.float32, copy=True).mul_(inverse)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * unit).flatten(0, -2).sum(dim=0).to(weight.dtype)
        carried = grad.to(torch.float32, copy=True).mul_(weight)
        shared = (carried * unit).mean(dim=-1, keepdim=True)
        return carried.addcmul_(unit, shared, value=-1).mul_(inverse).to(x.dtype), grad_weight, None


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x, and 1 / sqrt(mean(x^2) + eps) of each token."""
    exact = x.to(torch.float32, copy=True)
    squared = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_()
    inverse = squared.div_(x.shape[-1]).add_(eps).rsqrt_()
    return exact.mul_(inverse).to(x.dtype) * weight, inverse


@torch.no_grad()
def fuse_norms(model: torch.nn.Module) -> None:
    """Replace the root-mean-square norms of a model, in place."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float):
            weight: Any = module.weight
            probe = torch.linspace(-1, 2, 2 * len(weight), device=weight.device).view(2, -1).to(weight.dtype)
            replace_if_equal(module, _norm_of(module, eps), probe)


def _norm_of(module: Any, eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = RootMeanSquareNorm.apply(x, module.weight, eps)  # type: ignore[no-untyped-call]
        setattr(y, NORMED, (x.detach(), module.weight.detach(), eps))
        return y

    return forward


def replace_if_equal(
    module: Any, forward: Callable[[torch.Tensor], torch.Tensor], probe: torch.Tensor
) -> None:
    """Replace a module's forward pass if the new one gives the same for `probe`: modules of one name differ between
    families."""
    if torch.allclose(module.forward(probe), forward(probe), rtol=1e-2, atol=1e-4):
        module.forward = forward
