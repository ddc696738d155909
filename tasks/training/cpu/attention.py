"""Causal attention with its own way back, for training on a CPU: torch's fused one takes three times as long back as
forth there. What it computes is the same up to rounding (tested against the library's own)."""

from typing import Any

import torch

# A block of queries attends to the keys up to its end: what lies behind, half of all products, is mostly left out.
BLOCK = 128
# Tokens of a row up to which attention's shares are kept: there a fifth of what SmolLM2 keeps, beyond it more.
KEPT = 256


class CausalAttention(torch.autograd.Function):
    """softmax(scale q k^T) v over positions up to each query's own, the last query's being the last; key heads are
    shared by groups of query heads.

    What a query gives each position is kept for the way back of short rows, and computed again for long ones: it grows
    with the square of the length, and would be most of what a long row takes.
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
        a query sees no more than so many positions, its own counted."""
        (rows, heads, length, width), (_, groups, keys, _) = query.shape, key.shape
        shape = (rows * groups, heads // groups, length, width)
        q = query.reshape(shape)
        k, v = (side.reshape(rows * groups, keys, width) for side in (key, value))
        out = torch.empty_like(q)
        shares = []
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            share = _share(q, k, begin, end, scale, window)
            out[:, :, begin:end] = torch.bmm(share, v[:, : share.shape[-1]]).view(
                rows * groups, -1, end - begin, width
            )
            if keys <= KEPT:
                shares.append(share)
        ctx.save_for_backward(q, k, v, out, *shares)
        ctx.scale, ctx.window, ctx.shape = scale, window, (query.shape, key.shape)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Gradients of query, key and value."""
        q, k, v, out, *shares = ctx.saved_tensors
        grad, length, width = grad.reshape(q.shape), *q.shape[2:]
        # sum_j p_j dp_j = dout . out, for each query
        carried = (grad * out).sum(dim=-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, begin in enumerate(range(0, length, BLOCK)):
            end = min(begin + BLOCK, length)
            share = shares[number] if shares else _share(q, k, begin, end, ctx.scale, ctx.window)
            seen = slice(share.shape[-1])
            of_out = grad[:, :, begin:end].reshape(len(q), -1, width)
            grad_v[:, seen].baddbmm_(share.mT, of_out)
            lost = carried[:, :, begin:end].reshape(len(q), -1, 1)
            low = torch.baddbmm(lost, of_out, v[:, seen].mT, beta=-1).mul_(share)
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
    """Whether a query at each of these positions sees each of the first `keys`: boolean [queries, keys]."""
    own = torch.arange(queries.start, queries.stop, device=device)[:, None]
    position = torch.arange(keys, device=device)
    seen = position <= own
    return seen if window is None else seen & (position > own - window)


def _share(
    q: torch.Tensor, k: torch.Tensor, begin: int, end: int, scale: float, window: int | None
) -> torch.Tensor:
    """What the queries from `begin` to `end` give each position up to the last one's:
    [R * G, queries of a group, positions]."""
    offset = k.shape[1] - q.shape[2]
    block = q[:, :, begin:end].reshape(len(q), -1, q.shape[3])
    seen = seen_positions(range(offset + begin, offset + end), offset + end, window)
    hidden = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(seen.logical_not_(), float("-inf"))
    scores = torch.baddbmm(hidden.repeat(q.shape[1], 1), block, k[:, : offset + end].mT, alpha=scale)
    return scores.softmax(dim=-1).to(q.dtype)
