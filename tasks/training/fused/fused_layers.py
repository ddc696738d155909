"""Linear layers, LoRA layers and gated MLPs computed by `products` and `adapted_linears`."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from transformers import PreTrainedModel

from tasks.engines.products import Product, by_onednn
from tasks.training.fused.adapted_linears import AdaptedLinears, GatedLinear
from tasks.training.fused.fused_norms import NORMED, replace_if_equal

SIDES = ("lora_A", "lora_B")


class SharedInput:
    """LoRA layers that read the same tensor, in the order of their calls: the first call computes for all."""

    def __init__(self, layers: Sequence[LoraLinear]) -> None:
        self.layers = layers
        self._thread = threading.local()  # micro-batches run in parallel
        for number, layer in enumerate(layers):
            layer.forward = partial(self._forward, number)  # type: ignore[method-assign]

    def _forward(self, number: int, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        layer = self.layers[number]
        if layer.disable_adapters:
            bare: torch.Tensor = layer.get_base_layer()(x)
            return bare
        if number == 0:
            self._thread.read, self._thread.outs = x, _adapted(self.layers, x)
        if getattr(self._thread, "read", None) is not x:
            return _adapted([layer], x)[0]
        out: torch.Tensor = self._thread.outs[number]
        if number == len(self.layers) - 1:
            self._thread.read = self._thread.outs = None  # freed after the last reader
        return out


def _adapted(layers: Sequence[LoraLinear], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scales, tensors = _parts(layers)
    source = getattr(x, NORMED, None)
    x = x.to(tensors[0].dtype)
    outs: tuple[torch.Tensor, ...] = AdaptedLinears.apply(x, source, scales, *tensors)  # type: ignore[no-untyped-call]
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


def _gated(mlp: Any, usual: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The output of a gated MLP whose last layer is adapted; with the adapter off, as usual."""
    if mlp.down_proj.disable_adapters:
        return usual(x)
    (scale,), tensors = _parts([mlp.down_proj])
    gate, up = (layer(x).to(tensors[0].dtype) for layer in (mlp.gate_proj, mlp.up_proj))
    out: torch.Tensor = GatedLinear.apply(gate, up, scale, *tensors)  # type: ignore[no-untyped-call]
    return out


def replace_linears(model: PreTrainedModel) -> None:
    """Have oneDNN compute the linear layers of a model, in place; under autocast torch does."""
    for module in model.modules():
        if type(module) is torch.nn.Linear and by_onednn(module.weight):
            module.forward = partial(_linear, module, module.forward)  # type: ignore[method-assign]


def _linear(
    layer: torch.nn.Linear, usual: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu"):
        return usual(x)
    out: torch.Tensor = Product.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    return out if layer.bias is None else out + layer.bias


def fuse_adapter(model: PreTrainedModel) -> None:
    """Replace the plain LoRA layers and gated MLPs of a model, in place.

    A forward pass shows which layers read the same tensor.
    """
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
        SharedInput([layer for layer, _ in same])
    for layer in layers:
        if times[layer] != 1:  # an expert that was not asked, or a layer in several places
            SharedInput([layer])
    _fuse_gated(model)


@torch.no_grad()
def _fuse_gated(model: PreTrainedModel) -> None:
    for module in model.modules():
        layers = [getattr(module, name, None) for name in ("down_proj", "gate_proj", "up_proj")]
        if isinstance(layers[0], LoraLinear) and _plain(layers[0]) and all(map(callable, layers)):
            weight: Any = layers[0].get_base_layer().weight
            # The input of a gate is as wide as the MLP's output.
            probe = torch.linspace(-1, 2, 2 * len(weight), dtype=weight.dtype, device=weight.device)
            replace_if_equal(module, partial(_gated, module, module.forward), probe.view(1, 2, -1))


def _plain(module: LoraLinear) -> bool:
    return (
        len(module.active_adapters) == 1
        and not module.lora_variant
        and type(module.get_base_layer()) is torch.nn.Linear
        and module.get_base_layer().bias is None
    )
