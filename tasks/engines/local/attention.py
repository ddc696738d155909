"""Grouped-query attention for decoding on CPU without copies of keys and values.

At every token, transformers' sdpa attention copies each key and value head once per query head that shares it. With
one query position, the query heads of a group can take the place of query positions: the same products without a
copy, and one matrix product instead of several matrix-vector products.

In bfloat16 torch's fused attention takes one small product per row and head, whose calls cost more than their
computing. There two batched products take half of its time. Keys come first, in the order they are stored in.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "nlac_grouped_sdpa"


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention with the signature of transformers' attention functions.

    Args:
        module: the attention layer, passed on to the library's own function.
        query: [rows, query heads, positions, head dim].
        key: [rows, key heads, context, head dim].
        value: as key.
        attention_mask: [rows, 1, positions, context], boolean or additive; None masks nothing.
        scaling: factor on the products; None is 1/sqrt(head dim).
        kwargs: passed on to the library's own function, which serves all other shapes.

    Returns:
        [rows, positions, query heads, head dim], and no attention weights.
    """
    rows, heads, positions, width = query.shape
    groups = key.shape[1]
    if positions != 1 or heads == groups or (attention_mask is not None and attention_mask.shape[1] != 1):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    grouped = query.view(rows, groups, heads // groups, width)
    if query.dtype == torch.bfloat16 and attention_mask is not None and attention_mask.dtype == torch.bool:
        scale = width**-0.5 if scaling is None else scaling
        products = torch.matmul(key, (grouped * scale).transpose(2, 3)).transpose(2, 3)
        weights = products.to(torch.float32, memory_format=torch.contiguous_format)
        weights = weights.masked_fill_(~attention_mask, -torch.inf).softmax(-1).to(value.dtype)
        return torch.matmul(weights, value).reshape(rows, 1, heads, width), None
    mixed = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return mixed.reshape(rows, 1, heads, width), None


def register() -> str:
    """Register the function with transformers, with sdpa's masks; returns its name for `attn_implementation`."""
    AttentionInterface.register(NAME, grouped_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
