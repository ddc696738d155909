"""LoRA layers, norms and attention with their own way back, for training on a CPU.

Composed of single operations, an adapted layer passes over its output four times (cast, scale, add, cast) and keeps
copies of it for the way back, and a norm keeps three float32 copies of its input; torch's fused attention takes three
times as long back as forth. They are written out here: what they compute is the same up to rounding (tested against
the libraries' own).
"""

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from transformers import PreTrainedModel

SIDES = ("lora_A", "lora_B")
# A block of queries attends to the keys up to its end: what lies behind, half of all products, is mostly left out.
BLOCK = 128
# Tokens of a row up to which attention's shares are kept; there they are a third of all that a layer of SmolLM2 keeps.
KEPT = 1024


class AdaptedLinears(torch.autograd.Function):
    """y_i = x W_i^T + s_i (x A_i^T) B_i^T of layers that read the same x, with the W_i frozen.

    The low ranks' products with x are done together, for all layers.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scales: Sequence[float], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [..., K], then all W_i [N_i, K], all A_i [r_i, K] and all B_i [N_i, r_i]; products are in the dtype of the
        W_i."""
        count = len(scales)
        weights, a, b = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        dtype = weights[0].dtype
        flat = x.reshape(-1, x.shape[-1])
        all_a, low_b = torch.cat(a).to(dtype), [one.to(dtype) for one in b]
        low = flat @ all_a.T
        ranks = [len(one) for one in a]
        outs = []
        for weight, part, one, scale in zip(weights, low.split(ranks, dim=1), low_b, scales, strict=True):
            outs.append((flat @ weight.T).addmm_(part, one.T, alpha=scale).view(*x.shape[:-1], -1))
        ctx.save_for_backward(flat, low, all_a, *weights, *low_b)
        ctx.scales, ctx.ranks, ctx.shape = scales, ranks, x.shape
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """dx, none for the W_i, dA_i and dB_i in float32."""
        count = len(ctx.scales)
        flat, low, all_a, *rest = ctx.saved_tensors
        layers = list(
            zip(grads, rest[:count], rest[count:], low.split(ctx.ranks, dim=1), ctx.scales, strict=True)
        )
        grad_x, low_grads, grads_b = None, [], []
        for grad, weight, low_b, part, scale in layers:
            grad = grad.reshape(-1, len(weight))
            low_grads.append((grad @ low_b).mul_(scale))
            grads_b.append((grad.T @ part).float().mul_(scale))
            if ctx.needs_input_grad[0]:
                grad_x = grad @ weight if grad_x is None else grad_x.addmm_(grad, weight)
        low_grad = torch.cat(low_grads, dim=1)
        if grad_x is not None:
            grad_x = grad_x.addmm_(low_grad, all_a).view(ctx.shape)
        grads_a = (low_grad.T @ flat).float().split(ctx.ranks)
        return grad_x, None, *[None] * count, *grads_a, *grads_b


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
    """softmax(scale q k^T) v over positions up to each query's own, the last query's being the last; key heads are
    shared by groups of query heads.

    What a query gives each position is kept for the way back of short rows, and computed again for long ones: it grows
    with the square of the length, and would be most of what a long row takes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """query [R, H, T, D], key and value [R, G, L, D] of one dtype with L >= T; returns [R, H, T, D]. With a window
        a query sees no more than so many positions, its own counted."""
        (rows, heads, length, width), (_, groups, keys, _) = query.shape, key.shape
        shape = (rows * groups, heads // groups, length, width)
        q = query.reshape(shape)
        k, v = (side.reshape(rows * groups, keys, width) for side in (key, value))
        out = torch.empty_like(q)
        shares = []
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            share = _share(q, k, begin, end, scale, window)
            out[:, :, begin:end] = torch.bmm(share, v[:, : share.shape[-1]]).view(
                rows * groups, -1, end - begin, width
            )
            if keys <= KEPT:
                shares.append(share)
        ctx.save_for_backward(q, k, v, out, *shares)
        ctx.scale, ctx.window, ctx.shape = scale, window, (query.shape, key.shape)
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
            share = shares[number] if shares else _share(q, k, begin, end, ctx.scale, ctx.window)
            seen = slice(share.shape[-1])
            of_out = grad[:, :, begin:end].reshape(len(q), -1, width)
            grad_v[:, seen].baddbmm_(share.mT, of_out)
            lost = carried[:, :, begin:end].reshape(len(q), -1, 1)
            low = torch.baddbmm(lost, of_out, v[:, seen].mT, beta=-1).mul_(share)
            block = q[:, :, begin:end].reshape(len(q), -1, width)
            grad_q[:, :, begin:end] = torch.bmm(low, k[:, seen]).view(len(q), -1, end - begin, width)
            grad_k[:, seen].baddbmm_(low.mT, block)
        grad_q.mul_(ctx.scale)
        grad_k.mul_(ctx.scale)
        of_query, of_key = ctx.shape
        return grad_q.view(of_query), grad_k.view(of_key), grad_v.view(of_key), None, None


def seen_positions(
    queries: range, keys: int, window: int | None, device: torch.device | None = None
) -> torch.Tensor:
    """Whether a query at each of these positions sees each of the first `keys`: boolean [queries, keys]."""
    own = torch.arange(queries.start, queries.stop, device=device)[:, None]
    position = torch.arange(keys, device=device)
    seen = position <= own
    return seen if window is None else seen & (position > own - window)


def _share(
    q: torch.Tensor, k: torch.Tensor, begin: int, end: int, scale: float, window: int | None
) -> torch.Tensor:
    """What the queries from `begin` to `end` give each position up to the last one's:
    [R * G, queries of a group, positions]."""
    offset = k.shape[1] - q.shape[2]
    block = q[:, :, begin:end].reshape(len(q), -1, q.shape[3])
    seen = seen_positions(range(offset + begin, offset + end), offset + end, window)
    hidden = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(seen.logical_not_(), float("-inf"))
    scores = torch.baddbmm(hidden.repeat(q.shape[1], 1), block, k[:, : offset + end].mT, alpha=scale)
    return scores.softmax(dim=-1).to(q.dtype)


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
    weights = [layer.get_base_layer().weight for layer in layers]
    names = [layer.active_adapters[0] for layer in layers]
    a, b = (
        [getattr(layer, side)[name].weight for layer, name in zip(layers, names, strict=True)]
        for side in SIDES
    )
    scales = [layer.scaling[name] for layer, name in zip(layers, names, strict=True)]
    outs: tuple[torch.Tensor, ...] = AdaptedLinears.apply(x.to(weights[0].dtype), scales, *weights, *a, *b)
    return outs


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
