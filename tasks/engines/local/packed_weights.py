"""Weights of linear layers in the order in which they are multiplied by.

A product on a CPU brings its weights into that order first. For the few rows of a decoding step that takes as long as
the product itself. So a model that does not change is packed once, at the price of the layers' weights a second time in
memory, or half of that where float16 holds them. In bfloat16 results are the same to the bit, in float32 up to rounding
(`tasks.engines.products`).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from tasks.engines.products import packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

MOST_BYTES = 1 << 30  # of a model's weights: larger ones stay as they are, to spare memory


class PackedLinear(nn.Linear):
    """A linear layer with packed weights. A copy has none, so that they never differ from its weights."""

    packed: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., M, in features] to [..., M, out features], without gradients."""
        return super().forward(input) if self.packed is None else self.packed(input)

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Linear:
        other = nn.Linear.__new__(nn.Linear)
        memo[id(self)] = other
        other.__dict__ = copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "packed"}, memo)
        return other


def pack(model: PreTrainedModel, *, any_place: bool = False) -> None:
    """Pack a model's linear layers where that helps: on a CPU, in bfloat16 and float32. Their weights must not change
    afterwards. `any_place` is as for `tasks.engines.products.packed`."""
    if sum(weight.nbytes for weight in model.parameters()) > MOST_BYTES:
        return
    for module in model.modules():
        if (
            type(module) is nn.Linear
            and (layer := packed(module.weight, module.bias, any_place=any_place)) is not None
        ):
            module.__class__ = PackedLinear
            module.__dict__["packed"] = layer
