"""Filling rows of token ids up: to the longest of them, or (deterministic mode) to a length that follows from one row
alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.engines.local.prefill import pad_left

BUCKET = 64  # deterministic: padded lengths are multiples of this


def padded(length: int) -> int:
    """Up to a full bucket, at least one pad, because the library computes batches without any padding in another
    way."""
    return (length // BUCKET + 1) * BUCKET


def pad_rows(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, fixed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both [rows, longest], filled up on the left; `fixed`: up to a full bucket."""
    ids, mask = pad_left(sequences, pad_id, str(device))
    more = padded(ids.shape[1]) - ids.shape[1] if fixed else 0
    fill = torch.nn.functional.pad
    return fill(ids, (more, 0), value=pad_id), fill(mask, (more, 0))
