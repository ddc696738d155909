"""Causal attention over packed rows, registered with transformers: no row sees another."""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tasks.training.fused.attention import CausalAttention, seen_positions
from tasks.training.fused.packed_rows import Packing

ATTENTION = "nlac_packed_attention"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention with the signature of transformers' attention functions.

    Args:
        module: the attention layer.
        query: [R, H, T, D], or [1, H, N, D] where rows are packed.
        key: [R, G, T, D], or [1, G, N, D].
        value: as key.
        attention_mask: ignored; transformers makes none for an attention it has no masks for.
        packing: of the rows; None: they are not packed.
        kwargs: of `attend_on_cpu` or `attend_by_library`.

    Returns:
        [R, T, H, D] or [1, N, H, D], and no attention weights.
    """

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if query.device.type == "cpu":
            return attend_on_cpu(query, key, value, **kwargs)
        return attend_by_library(module, query, key, value, **kwargs)

    if packing is None:
        return attend(query, key, value).contiguous(), None
    sides = [side[0].transpose(0, 1) for side in (query, key, value)]  # [N, heads, D]
    shared, *groups = zip(*(side.split([packing.shared, *packing.sizes]) for side in sides), strict=True)
    shared_query, shared_key, shared_value = (side.transpose(0, 1)[None] for side in shared)
    out = []
    if packing.shared:
        out.append(attend(shared_query, shared_key, shared_value)[0])
    for group, own in zip(packing.groups, groups, strict=True):
        query, key, value = map(group.pad, own)
        if packing.shared:
            key = torch.cat([shared_key.expand(len(key), -1, -1, -1), key], dim=2)
            value = torch.cat([shared_value.expand(len(value), -1, -1, -1), value], dim=2)
        out.append(group.unpad(attend(query, key, value)))
    return torch.cat(out)[None], None


def attend_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> torch.Tensor:
    """Attention of query [R, H, T, D], the last T of L positions, to key and value [R, G, L, D]: [R, T, H, D].

    A query sees `sliding_window` positions, its own included; None: all up to its own.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # With float32 weights autocast leaves the rotated sides in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out: torch.Tensor = CausalAttention.apply(query, key, value, scale, sliding_window)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


def attend_by_library(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """The same by transformers' function, and so by a GPU's kernels; the fastest of them take no mask."""
    length, keys = query.shape[2], key.shape[2]
    mask = None
    if length < keys or (sliding_window is not None and sliding_window < keys):
        mask = seen_positions(range(keys - length, keys), keys, sliding_window, query.device)[None, None]
    out: torch.Tensor = sdpa_attention_forward(module, query, key, value, mask, **kwargs)[0]
    return out


# Without masks of that name transformers makes none.
AttentionInterface.register(ATTENTION, packed_attention)
