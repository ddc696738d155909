"""Reading prompts into a key-value cache, close to the hardware.

Prompts of one role begin alike (instructions, rules of the game), differ in length, and are long beside what is
written. So what all share is read once; the rest is read a few rows at a time, so that activations stay in the
processor's cache and rows are padded only to their neighbours' length; and the parts are put together to one cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import DynamicCache

SHARED_HEAD = 16  # tokens in common below which a pass of their own is not worth it
CHUNK_TOKENS = 2048  # read at once


class Prompts(NamedTuple):
    """Prompts that have been read.

    Attributes:
        ids: [rows, width], padded on the left.
        mask: [rows, width], 1 where the cache (or the last id) holds a token; gaps may lie within a row.
        cache: keys and values of all but the last token of each row; `width` - 1 positions.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    cache: DynamicCache


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


def read_prompts(model: torch.nn.Module, prompts: Sequence[Sequence[int]], pad: int, device: str) -> Prompts:
    """Read all prompts but for their last tokens, which `generate` reads itself. Equal prompts (several samples of
    one) are read once.

    Args:
        model: a causal language model of transformers, in inference mode.
        prompts: token ids; rows of similar length should be neighbours.
        pad: id to pad with.
        device: of the model.
    """
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    if len(distinct) < len(prompts):
        number = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([number[tuple(prompt)] for prompt in prompts], device=device)
        read = read_prompts(model, distinct, pad, device)
        read.cache.batch_select_indices(rows)
        return Prompts(read.ids[rows], read.mask[rows], read.cache)
    head = shared_head(prompts)
    common = read_head(model, prompts[0][:head], device)
    bodies = [list(prompt[head:-1]) for prompt in prompts]
    masks, caches = [], []
    for rows in chunks([len(body) for body in bodies]):
        cache = spread(model, common, len(rows))
        ids, mask = pad_left([bodies[row] for row in rows], pad, device)
        whole, positions = after_head(mask, head)
        if ids.shape[1]:
            model(
                input_ids=ids, attention_mask=whole, position_ids=positions, past_key_values=cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
        masks.append(whole)
        caches.append(cache)
    return Prompts(*_joined(model, prompts, masks, caches, pad, device))


def _joined(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    masks: Sequence[torch.Tensor],
    caches: Sequence[DynamicCache],
    pad: int,
    device: str,
) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
    """The parts as one, each filled up on the left."""
    width = max(mask.shape[1] for mask in masks)

    def filled(parts: Sequence[torch.Tensor], ending: tuple[int, ...]) -> torch.Tensor:
        axis = -1 - len(ending) // 2
        return torch.cat([torch.nn.functional.pad(p, (*ending, width - p.shape[axis], 0)) for p in parts])

    cache = DynamicCache(config=model.config)
    if width:
        for number in range(len(caches[0].layers)):
            keys = filled([c.layers[number].keys for c in caches], (0, 0))
            values = filled([c.layers[number].values for c in caches], (0, 0))
            cache.update(keys, values, number)
            for part in caches:  # give the memory back layer by layer
                part.layers[number].keys = part.layers[number].values = None
    ids = torch.full((len(prompts), width + 1), pad, device=device)
    ids[:, -1] = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    mask = torch.nn.functional.pad(filled(masks, ()), (0, 1), value=1)
    return ids, mask, cache
