"""Token ids of several texts as padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

BUCKET = 64  # deterministic mode pads lengths to multiples of this
CHUNK_TOKENS = 2048  # per forward pass: activations stay in the processor's cache, and padding stays small


def padded(length: int) -> int:
    """A length padded to a full bucket, by at least one token: transformers computes batches without any padding by
    another path."""
    return (length // BUCKET + 1) * BUCKET


def pad_rows(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, fixed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both [rows, longest], padded on the left; `fixed` pads to a full bucket."""
    longest = max(map(len, sequences))
    width = padded(longest) if fixed else longest
    ids = torch.full((len(sequences), width), pad_id)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, width - len(sequence) :] = torch.tensor(list(sequence))
        mask[row, width - len(sequence) :] = 1
    return ids.to(device), mask.to(device)


def pad_right(sequences: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Token ids [rows, longest], padded on the right."""
    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[pad_id] * (longest - len(sequence))] for sequence in sequences])


def chunks(lengths: Sequence[int]) -> Iterator[range]:
    """Ranges of consecutive rows for one forward pass each: at most CHUNK_TOKENS with padding, but at least one row."""
    start, widest = 0, 0
    for index, length in enumerate(lengths):
        if index > start and max(widest, length) * (index + 1 - start) > CHUNK_TOKENS:
            yield range(start, index)
            start, widest = index, 0
        widest = max(widest, length)
    if lengths:
        yield range(start, len(lengths))
