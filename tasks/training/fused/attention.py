"""Causal attention with its own backward pass, for training on a CPU.

The backward pass of torch's fused attention takes three times as long as its forward pass there. What this computes is
the same up to rounding (tested against torch's).
"""

from typing import Any

import torch

# Queries computed at once. A block attends to the keys up to its end, which leaves out about half of all products.
BLOCK = 128
# Longest row, in tokens, whose attention weights are stored. Up to it they take a fifth of SmolLM2's saved activations.
STORED = 256


class CausalAttention(torch.autograd.Function):
    """softmax(scale q k^T) v over the positions up to each query's own. The queries are the last T of L positions, and
    groups of query heads share a key head.

    Attention weights are stored for short rows and recomputed in the backward pass for long ones, whose memory they
    would dominate: they grow with the square of the length.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """query [R, H, T, D], key and value [R, G, L, D] of one dtype with L >= T; returns [R, H, T, D]. With a window
        a query sees at most that many positions, its own included."""
        (rows, heads, length, width), (_, groups, keys, _) = query.shape, key.shape
        shape = (rows * groups, heads // groups, length, width)
        q = query.reshape(shape)
        k, v = (side.reshape(rows * groups, keys, width) for side in (key, value))
        out = torch.empty_like(q)
        stored = []
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            weights = _weights(q, k, begin, end, scale, window)
            out[:, :, begin:end] = torch.bmm(weights, v[:, : weights.shape[-1]]).view(
                rows * groups, -1, end - begin, width
            )
            if keys <= STORED:
                stored.append(weights)
        ctx.save_for_backward(q, k, v, out, *stored)
        ctx.scale, ctx.window, ctx.shape = scale, window, (query.shape, key.shape)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value."""
        q, k, v, out, *stored = ctx.saved_tensors
        grad = grad.reshape(q.shape)
        length, width = q.shape[2:]
        # sum_j p_j dp_j = dout . out, for each query
        carried = (grad * out).sum(dim=-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, begin in enumerate(range(0, length, BLOCK)):
            end = min(begin + BLOCK, length)
            weights = stored[number] if stored else _weights(q, k, begin, end, ctx.scale, ctx.window)
            seen = slice(weights.shape[-1])
            of_out = grad[:, :, begin:end].reshape(len(q), -1, width)
            grad_v[:, seen].baddbmm_(weights.mT, of_out)
            lost = carried[:, :, begin:end].reshape(len(q), -1, 1)
            low = torch.baddbmm(lost, of_out, v[:, seen].mT, beta=-1).mul_(weights)
            block = q[:, :, begin:end].reshape(len(q), -1, width)
            grad_q[:, :, begin:end] = torch.bmm(low, k[:, seen]).view(len(q), -1, end - begin, width)
            grad_k[:, seen].baddbmm_(low.mT, block)
        grad_q.mul_(ctx.scale)
        grad_k.mul_(ctx.scale)
        of_query, of_key = ctx.shape
        return grad_q.view(of_query), grad_k.view(of_key), grad_v.view(of_key), None, None


def seen_positions(
    queries: range, keys: int, window: int | None, device: torch.device | None = None
) -> torch.Tensor:
    """Whether each of the queries at these positions sees each of the first `keys`: boolean [queries, keys]."""
    own = torch.arange(queries.start, queries.stop, device=device)[:, None]
    position = torch.arange(keys, device=device)
    seen = position <= own
    return seen if window is None else seen & (position > own - window)


def _weights(
    q: torch.Tensor, k: torch.Tensor, begin: int, end: int, scale: float, window: int | None
) -> torch.Tensor:
    """Attention weights of the queries from `begin` to `end`: [R * G, queries of a group, positions up to the last]."""
    offset = k.shape[1] - q.shape[2]
    block = q[:, :, begin:end].reshape(len(q), -1, q.shape[3])
    seen = seen_positions(range(offset + begin, offset + end), offset + end, window)
    hidden = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(seen.logical_not_(), float("-inf"))
    scores = torch.baddbmm(hidden.repeat(q.shape[1], 1), block, k[:, : offset + end].mT, alpha=scale)
    return scores.softmax(dim=-1).to(q.dtype)
