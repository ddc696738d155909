"""Reading what many texts begin with only once, and the rest a few rows at a time.

Texts of one role begin alike (instructions, rules of the game) and differ in length. A few rows of like length at a
time keep activations in the processor's cache and padding small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import DynamicCache

SHARED_HEAD = 16  # tokens in common below which a pass of their own is not worth it
CHUNK_TOKENS = 2048  # read at once


def shared_head(sequences: Sequence[Sequence[int]]) -> int:
    """How many first tokens all sequences have in common and leave at least one token after."""
    if len(sequences) == 1:
        return 0
    first, last = min(sequences), max(sequences)  # in lexical order: what these two share, all share
    same = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    head = min(same, min(map(len, sequences)) - 1)
    return head if head >= SHARED_HEAD else 0


def chunks(lengths: Sequence[int]) -> Iterator[range]:
    """Neighbouring rows that are read at once: at most CHUNK_TOKENS with padding, but at least one row."""
    start, widest = 0, 0
    for index, length in enumerate(lengths):
        if index > start and max(widest, length) * (index + 1 - start) > CHUNK_TOKENS:
            yield range(start, index)
            start, widest = index, 0
        widest = max(widest, length)
    if lengths:
        yield range(start, len(lengths))


def read_head(model: torch.nn.Module, tokens: Sequence[int], device: str) -> DynamicCache:
    """A cache of one row that holds `tokens`."""
    cache = DynamicCache(config=model.config)
    if tokens:
        ids = torch.tensor([list(tokens)], device=device)
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def spread(model: torch.nn.Module, cache: DynamicCache, rows: int) -> DynamicCache:
    """A copy of a one-row cache for several rows."""
    copy = DynamicCache(config=model.config)
    for number, layer in enumerate(cache.layers):
        if layer.keys is not None:
            copy.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), number)
    return copy


def pad_left(sequences: Sequence[Sequence[int]], pad: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both [rows, longest]."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), pad)
    mask = torch.zeros((len(sequences), width), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        if sequence:
            ids[row, width - len(sequence) :] = torch.tensor(list(sequence))
            mask[row, width - len(sequence) :] = 1
    return ids.to(device), mask.to(device)


def after_head(mask: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask with `head` tokens before it, and the positions of what comes after them."""
    whole = torch.nn.functional.pad(mask, (head, 0), value=1)
    return whole, (whole.cumsum(dim=1) - 1).clamp(min=0)[:, head:]
