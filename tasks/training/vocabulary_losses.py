"""Losses over the vocabulary, with few logits in memory at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

# Logits in memory at once: 256 MiB in float32.
LOGITS = 1 << 26
# Of them, those that a CPU converts to float32 and to probabilities at once: 2 MiB, which fit into its caches.
CACHED = 1 << 19


class VocabularyLosses(torch.autograd.Function):
    """Cross-entropies against p, and KL(p_theta || p_base) where a base is given, of logits.

    Composed of single operations they store three float32 tensors of the logits' size, and the backward pass fills two
    more. This stores the logits as they are, recomputes what it needs some rows at a time, and writes the gradient in
    place of the logits, so `backward()` can run only once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        base: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """logits and base's [N, V], p as `loss.targets` gives it; returns float32 [1, N], with a base [2, N]."""
        ctx.save_for_backward(logits, ids, shares, base)
        found = []
        for logprobs, some_ids, some_shares, log_ratio in _rows_at_a_time(logits, ids, shares, base):
            losses = [-(some_shares * logprobs.gather(1, some_ids)).sum(dim=1)]
            if log_ratio is not None:
                losses.append((logprobs.exp() * log_ratio).sum(dim=1))
            found.append(torch.stack(losses))
        return torch.cat(found, dim=1)

    @staticmethod
    def backward(ctx: Any, grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """With g the gradient of a cross-entropy and h that of a KL: d logits = g (sum(p) p_theta - p) + h p_theta
        (log p_theta - log p_base - KL)."""
        logits, ids, shares, base = ctx.saved_tensors
        weights = shares * grads[0, :, None]
        begin = 0
        for logprobs, some_ids, some_weights, log_ratio in _rows_at_a_time(logits, ids, weights, base):
            end = begin + len(logprobs)
            probabilities = logprobs.exp_()
            grad = probabilities * some_weights.sum(dim=1, keepdim=True)
            if log_ratio is not None:
                divergences = (probabilities * log_ratio).sum(dim=1, keepdim=True)
                grad += probabilities * (log_ratio - divergences) * grads[1, begin:end, None]
            logits[begin:end] = grad.scatter_add_(1, some_ids, -some_weights)
            begin = end
        return logits, None, None, None


def _rows_at_a_time(
    logits: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, base: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """log p_theta [n, V] in float32, ids, shares, and log p_theta - log p_base or None, for some rows at a time."""
    size = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for begin in range(0, len(logits), size):
        some = slice(begin, begin + size)
        logprobs = logits[some].log_softmax(dim=-1, dtype=torch.float32)
        log_ratio = None if base is None else logprobs - base[some].log_softmax(dim=-1, dtype=torch.float32)
        yield logprobs, ids[some], shares[some], log_ratio


def in_chunks(
    compute: Callable[..., torch.Tensor], vocabulary: int, tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Compute something from vocabulary-wide logits, for all label tokens.

    Where the logits do not fit at once, the backward pass recomputes them chunk by chunk.

    Args:
        compute: from tensors [n, ...] to [..., n].
        vocabulary: logits per label token.
        tensors: arguments of `compute`, [N, ...].
    """
    size = max(1, LOGITS // vocabulary)
    if len(tensors[0]) <= size:
        return compute(*tensors)
    chunks = zip(*(tensor.split(size) for tensor in tensors), strict=True)
    return torch.cat([checkpoint(compute, *chunk, use_reentrant=False) for chunk in chunks], dim=-1)
