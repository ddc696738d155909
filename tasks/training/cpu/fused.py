"""LoRA layers, gated MLPs and norms with their own way back, for training on a CPU.

Composed of single operations, an adapted layer passes over its output four times (cast, scale, add, cast) and keeps
copies of it for the way back, a gated MLP keeps four tensors of its width where two hold all there is to know, and a
norm keeps three float32 copies of its input and leaves its output to be kept by who reads it. They are written out
here: what they compute is the same up to rounding (tested against the libraries' own).
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import silu
from transformers import PreTrainedModel

SIDES = ("lora_A", "lora_B")
# Attribute of a norm's output, on its way to who reads it: the input, weight and epsilon that it can be made of again.
NORMED = "nlac_normed"
Normed = tuple[torch.Tensor, torch.Tensor, float]


class AdaptedLinears(torch.autograd.Function):
    """y_i = x W_i^T + s_i (x A_i^T) B_i^T of layers that read the same x, with the W_i frozen.

    The low ranks' products with x are done together, for all layers. Where x is a norm's output, it is made again on
    the way back from the norm's input, which the norm keeps anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, normed: Normed | None, scales: Sequence[float], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [..., K] and what it is the norm of, then all W_i [N_i, K], all A_i [r_i, K] and all B_i [N_i, r_i];
        products are in the dtype of the W_i."""
        outs, kept = _adapted_forth(x, scales, tensors)
        source, weight, eps = normed or (x, None, None)
        ctx.save_for_backward(source, weight, *kept)
        ctx.scales, ctx.eps, ctx.dtype = scales, eps, x.dtype
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """dx, none for the W_i, dA_i and dB_i in float32."""
        x, weight, *kept = ctx.saved_tensors
        if weight is not None:
            x = _normed(x, weight, ctx.eps)[0].to(ctx.dtype)
        grad_x, of_tensors = _adapted_back(grads, x, ctx.scales, kept, ctx.needs_input_grad[0])
        return grad_x, None, None, *of_tensors


class GatedLinear(torch.autograd.Function):
    """y = h W^T + s (h A^T) B^T with h = silu(g) u and W frozen; g and u are kept, and h computed from them again."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, scale: float, *tensors: torch.Tensor
    ) -> torch.Tensor:
        """gate and up [..., K], then W [N, K], A [r, K] and B [N, r]."""
        (out,), kept = _adapted_forth(silu(gate).mul_(up), (scale,), tensors)
        ctx.save_for_backward(gate, up, *kept)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """dg, du, none for W, dA and dB in float32."""
        gate, up, *kept = ctx.saved_tensors
        active = silu(gate)
        grad_h, of_tensors = _adapted_back((grad,), active * up, (ctx.scale,), kept)
        assert grad_h is not None
        grad_up = active.mul_(grad_h)
        return torch.ops.aten.silu_backward(grad_h.mul_(up), gate), grad_up, None, *of_tensors


def _adapted_forth(
    x: torch.Tensor, scales: Sequence[float], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The y_i, and what the way back needs beside x: the low ranks' part, all A in one, the W_i and the B_i."""
    count = len(scales)
    weights, a, b = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
    dtype = weights[0].dtype
    flat = x.reshape(-1, x.shape[-1])
    all_a, low_b = torch.cat(a).to(dtype), [one.to(dtype) for one in b]
    low = flat @ all_a.T
    parts = low.split([len(one) for one in a], dim=1)
    outs = (
        (flat @ weight.T).addmm_(part, one.T, alpha=scale).view(*x.shape[:-1], -1)
        for weight, part, one, scale in zip(weights, parts, low_b, scales, strict=True)
    )
    return tuple(outs), [low, all_a, *weights, *low_b]


def _adapted_back(
    grads: Sequence[torch.Tensor],
    x: torch.Tensor,
    scales: Sequence[float],
    kept: Sequence[torch.Tensor],
    of_x: bool = True,
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """dx, if it is asked for, and of the tensors: none for the W_i, dA_i and dB_i in float32."""
    low, all_a, *rest = kept
    weights, low_b = rest[: len(scales)], rest[len(scales) :]
    flat = x.reshape(-1, x.shape[-1])
    ranks = [one.shape[1] for one in low_b]
    grad_x, low_grads, grads_b = None, [], []
    for grad, weight, one, part, scale in zip(
        grads, weights, low_b, low.split(ranks, dim=1), scales, strict=True
    ):
        grad = grad.reshape(-1, len(weight))
        low_grads.append((grad @ one).mul_(scale))
        grads_b.append((grad.T @ part).float().mul_(scale))
        if of_x:
            grad_x = grad @ weight if grad_x is None else grad_x.addmm_(grad, weight)
    low_grad = torch.cat(low_grads, dim=1)
    if grad_x is not None:
        grad_x = grad_x.addmm_(low_grad, all_a).view(x.shape)
    grads_a = (low_grad.T @ flat).float().split(ranks)
    return grad_x, [*[None] * len(scales), *grads_a, *grads_b]


class RootMeanSquareNorm(torch.autograd.Function):
    """y = w x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32; keeps x and one number a token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H] and weight [H]."""
        y, inverse = _normed(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return y

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


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x, and one over the root of its mean square."""
    exact = x.to(torch.float32, copy=True)
    squared = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_()
    inverse = squared.div_(x.shape[-1]).add_(eps).rsqrt_()
    return exact.mul_(inverse).to(x.dtype) * weight, inverse


class _Together:
    """LoRA layers that are handed the same tensor: the first that is called computes for all.

    Args:
        layers: in the order in which they are called.
    """

    def __init__(self, layers: Sequence[LoraLinear]) -> None:
        self.layers = layers
        self._lane = threading.local()  # micro-batches may be computed side by side
        for number, layer in enumerate(layers):
            layer.forward = partial(self._forward, number)

    def _forward(self, number: int, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        layer = self.layers[number]
        if layer.disable_adapters:
            bare: torch.Tensor = layer.get_base_layer()(x)
            return bare
        if number == 0:
            self._lane.read, self._lane.outs = x, _adapted(self.layers, x)
        if getattr(self._lane, "read", None) is not x:
            return _adapted([layer], x)[0]
        out: torch.Tensor = self._lane.outs[number]
        if number == len(self.layers) - 1:
            self._lane.read = self._lane.outs = None  # they live no longer than they are needed
        return out


def _adapted(layers: Sequence[LoraLinear], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scales, tensors = _parts(layers)
    normed = getattr(x, NORMED, None)
    outs: tuple[torch.Tensor, ...] = AdaptedLinears.apply(x.to(tensors[0].dtype), normed, scales, *tensors)
    return outs


def _parts(layers: Sequence[LoraLinear]) -> tuple[list[float], list[torch.Tensor]]:
    """Scales of layers, and their weights, all A and all B."""
    weights = [layer.get_base_layer().weight for layer in layers]
    names = [layer.active_adapters[0] for layer in layers]
    a, b = (
        [getattr(layer, side)[name].weight for layer, name in zip(layers, names, strict=True)]
        for side in SIDES
    )
    return [layer.scaling[name] for layer, name in zip(layers, names, strict=True)], [*weights, *a, *b]


def _gated(
    mlp: torch.nn.Module, usual: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """What a gated MLP computes whose last layer is adapted; with its adapter off, as usual."""
    if mlp.down_proj.disable_adapters:
        return usual(x)
    (scale,), tensors = _parts([mlp.down_proj])
    gate, up = (layer(x).to(tensors[0].dtype) for layer in (mlp.gate_proj, mlp.up_proj))
    out: torch.Tensor = GatedLinear.apply(gate, up, scale, *tensors)
    return out


@torch.no_grad()
def fuse_gated(model: PreTrainedModel) -> None:
    """Have a model's gated MLPs computed as above, in place, where their last layer is a plain LoRA layer."""
    for module in model.modules():
        layers = [getattr(module, name, None) for name in ("down_proj", "gate_proj", "up_proj")]
        if isinstance(layers[0], LoraLinear) and _plain(layers[0]) and all(map(callable, layers)):
            weight = layers[0].get_base_layer().weight
            # A gate's input is as wide as what comes out at the end.
            probe = torch.linspace(-1, 2, 2 * len(weight), dtype=weight.dtype, device=weight.device)
            _fuse(module, partial(_gated, module, module.forward), probe.view(1, 2, -1))


def fuse_adapter(model: PreTrainedModel) -> None:
    """Have a model's plain LoRA layers computed as above, in place; others stay as they are. Which of them read the
    same tensor is seen from a pass."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear) and _plain(module)]
    calls: list[tuple[LoraLinear, torch.Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *call: calls.append((call[0], call[1][0]))) for layer in layers
    ]
    with torch.no_grad():
        model.get_decoder()(input_ids=torch.tensor([[0]], device=model.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    times = Counter(layer for layer, _ in calls)
    for _, same in groupby((call for call in calls if times[call[0]] == 1), key=lambda call: id(call[1])):
        _Together([layer for layer, _ in same])
    for layer in layers:
        if times[layer] != 1:  # an expert that was not asked, or a layer in several places
            _Together([layer])
    fuse_gated(model)


@torch.no_grad()
def fuse_norms(model: PreTrainedModel) -> None:
    """Have a model's root-mean-square norms computed as above, in place."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float):
            weight = module.weight
            probe = torch.linspace(-1, 2, 2 * len(weight)).view(2, -1).to(weight.dtype)
            _fuse(module, _norm_of(module, eps), probe)


def _fuse(
    module: torch.nn.Module, fused: Callable[[torch.Tensor], torch.Tensor], probe: torch.Tensor
) -> None:
    """Have a module computed so if it computes that: modules of one name differ between families, and those that
    compute something else stay as they are."""
    if torch.allclose(module.forward(probe), fused(probe), rtol=1e-2, atol=1e-4):
        module.forward = fused


def _norm_of(module: torch.nn.Module, eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = RootMeanSquareNorm.apply(x, module.weight, eps)
        setattr(y, NORMED, (x.detach(), module.weight.detach(), eps))
        return y

    return forward


def _plain(module: LoraLinear) -> bool:
    return (
        len(module.active_adapters) == 1
        and not module.lora_variant
        and type(module.get_base_layer()) is torch.nn.Linear
        and module.get_base_layer().bias is None
    )
