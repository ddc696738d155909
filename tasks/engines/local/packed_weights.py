"""Weights of linear layers in the order in which oneDNN multiplies by them.

Each product in bfloat16 on a CPU brings its weights into that order first. For the few rows of a decoding step that
takes as long as the product itself. So a model that does not change is packed once. Results are the same to the bit, at
the price of the layers' weights a second time in memory.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_BYTES = 1 << 30  # of a model's weights: larger ones stay as they are, to spare memory


class PackedLinear(nn.Linear):
    """A linear layer with packed weights. A copy has none, so that they never differ from its weights."""

    packed: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in features] to [..., out features], without gradients."""
        if self.packed is None:
            return super().forward(input)
        pointwise = torch.ops.mkldnn._linear_pointwise
        return cast("torch.Tensor", pointwise(input, self.packed, self.bias, "none", [], ""))

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Linear:
        other = nn.Linear.__new__(nn.Linear)
        memo[id(self)] = other
        other.__dict__ = copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "packed"}, memo)
        return other


def pack(model: PreTrainedModel) -> None:
    """Pack a model's linear layers where that helps: in bfloat16 on a CPU whose oneDNN computes with it. Their weights
    must not change afterwards."""
    small = sum(weight.nbytes for weight in model.parameters()) <= MOST_BYTES
    on_cpu = model.device.type == "cpu" and model.dtype == torch.bfloat16
    if not (small and on_cpu and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = PackedLinear
            reorder = torch.ops.mkldnn._reorder_linear_weight
            module.__dict__["packed"] = reorder(module.weight.detach(), None)
