"""The losses L1 and L2 and the anchor's, with logits nowhere but where a label token is predicted.

A batch's loss is the mean over critic rows of w * NLL plus the mean over policy rows of NLL plus the mean over rows
of general chat of NLL, where NLL is a row's mean over its label tokens (nats per token). So a long label counts as
much as a short one, and no role's part depends on how many rows the others have. To it the anchor adds its
coefficient times the mean of KL(p_theta || p_base) over the label tokens of the stage's own rows (`anchor`).

A token's loss is the cross-entropy -sum_v p(v) log p_theta(v) against a target distribution p: all on the label's
token (sft), or, where a row has soft targets, the backup's renormalised top-k (token_kl).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tasks.training.cpu.packing import SHORTEST_SHARED, hidden_states
from tasks.training.data import Encoded

# Logits that exist at once: 256 MiB in float32.
LOGITS = 1 << 26
# Of them, those that a CPU takes to float32 and to probabilities at once: 2 MiB, which its caches hold.
CACHED = 1 << 19


def label_logprobs(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Log-probabilities (nats) of each row's label tokens, each given all tokens before it.

    Args:
        model: as for token_losses.
        rows: R rows.
        dtype: what matrix products are computed in (`model.dtype`).

    Returns:
        R float32 tensors, each [label tokens of the row].
    """
    labels = torch.tensor([token for row in rows for token in row.label_ids], device=model.device)
    losses = _cross_entropies(model, rows, labels[:, None], torch.ones_like(labels)[:, None], dtype)
    return (-losses).split([len(row.label_ids) for row in rows])


def token_losses(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The loss of every label token, row after row, against the row's hard or soft targets.

    Args:
        model: a causal model whose logits are its output embedding applied to its last hidden state.
        rows: the rows.
        dtype: what matrix products are computed in (`model.dtype`).

    Returns:
        float32 [label tokens of all rows].
    """
    ids, shares = targets(rows)
    return _cross_entropies(model, rows, ids.to(model.device), shares.to(model.device), dtype)


def targets(rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Target distributions of all label tokens: token ids and their probabilities, both [N, K].

    K is 1 where all targets are hard. A position with fewer tokens is filled up with token 0 at probability 0.
    """
    distributions = [distribution for row in rows for distribution in row.targets]
    most = max(len(ids) for ids, _ in distributions)
    fill = [(0,) * (most - size) for size in range(most + 1)]
    ids = torch.tensor([ids + fill[len(ids)] for ids, _ in distributions])
    shares = torch.tensor([shares + fill[len(shares)] for _, shares in distributions])
    return ids, shares


def _cross_entropies(
    model: PreTrainedModel,
    rows: Sequence[Encoded],
    ids: torch.Tensor,
    shares: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """-sum_v p(v) log p_theta(v) at every label token; ids and shares [N, K] are p, the result is [N]."""
    head = model.get_output_embeddings()

    def cross_entropies(states: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = VocabularyLosses.apply(head(states), ids, shares)
        return losses[0]

    states = label_states(model, rows, dtype)
    with autocast(model, dtype):
        return in_chunks(cross_entropies, head.weight.shape[0], (states, ids, shares))


class VocabularyLosses(torch.autograd.Function):
    """Cross-entropies against p, and KL(p_theta || p_base) where a base is given, of logits.

    Composed of single operations they keep three float32 tensors of the logits' size, and fill two more on the way
    back; this keeps the logits as they are, computes again what it needs, some rows at a time, and writes the gradient
    where the logits were: they are gone after the way back, which can be gone once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        base: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """logits and base's [N, V], p as `targets` gives it; float32 [1, N], with a base [2, N]."""
        ctx.save_for_backward(logits, ids, shares, base)
        found = []
        for logprobs, some_ids, some_shares, apart in _rows_at_a_time(logits, ids, shares, base):
            losses = [-(some_shares * logprobs.gather(1, some_ids)).sum(dim=1)]
            if apart is not None:
                losses.append((logprobs.exp() * apart).sum(dim=1))
            found.append(torch.stack(losses))
        return torch.cat(found, dim=1)

    @staticmethod
    def backward(ctx: Any, grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """With g the gradient of a cross-entropy and h that of a KL, d logits = g (sum(p) p_theta - p) + h p_theta
        (log p_theta - log p_base - KL)."""
        logits, ids, shares, base = ctx.saved_tensors
        begin = 0
        for logprobs, some_ids, weights, apart in _rows_at_a_time(
            logits, ids, shares * grads[0, :, None], base
        ):
            end = begin + len(logprobs)
            probabilities = logprobs.exp_()
            grad = probabilities * weights.sum(dim=1, keepdim=True)
            if apart is not None:
                divergences = (probabilities * apart).sum(dim=1, keepdim=True)
                grad += probabilities * (apart - divergences) * grads[1, begin:end, None]
            logits[begin:end] = grad.scatter_add_(1, some_ids, -weights)
            begin = end
        return logits, None, None, None


def _rows_at_a_time(
    logits: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, base: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """log p_theta [n, V] in float32, ids, shares, and log p_theta - log p_base or None, of some rows after others."""
    size = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for begin in range(0, len(logits), size):
        some = slice(begin, begin + size)
        logprobs = logits[some].log_softmax(dim=-1, dtype=torch.float32)
        apart = None if base is None else logprobs - base[some].log_softmax(dim=-1, dtype=torch.float32)
        yield logprobs, ids[some], shares[some], apart


def autocast(model: PreTrainedModel, dtype: torch.dtype) -> torch.autocast:
    """With bfloat16 the matrix products are in bfloat16, else all is in the weights' own type.

    To be entered once a forward pass, because it keeps its bfloat16 copies of float32 weights until it is left:
    entered around a training loop it would never see an update.
    """
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def in_chunks(
    compute: Callable[..., torch.Tensor], vocabulary: int, tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """What takes vocabulary-wide logits, over all label tokens.

    Where logits do not fit at once, they are recomputed on the way back, chunk by chunk, rather than kept.

    Args:
        compute: from tensors [n, ...] to [..., n].
        vocabulary: numbers that `compute` holds a label token.
        tensors: its arguments, [N, ...].
    """
    size = max(1, LOGITS // vocabulary)
    if len(tensors[0]) <= size:
        return compute(*tensors)
    chunks = zip(*(tensor.split(size) for tensor in tensors), strict=True)
    return torch.cat([checkpoint(compute, *chunk, use_reentrant=False) for chunk in chunks], dim=-1)


def label_states(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Last hidden states [N, H] where a label token is predicted, row after row, so that the vocabulary-wide product
    is never done over a prompt."""
    shared = shared_prefix(rows)
    # A row's last token predicts nothing that is needed.
    tokens = [[*row.prompt_ids, *row.label_ids][:-1] for row in rows]
    with autocast(model, dtype):
        hidden, begins = hidden_states(model, tokens, shared)
    predicting = chain.from_iterable(
        range(begin - shared + len(row.prompt_ids) - 1, begin - shared + row.tokens - 1)
        for begin, row in zip(begins, rows, strict=True)
    )
    return hidden[torch.tensor(list(predicting), device=model.device)]


def shared_prefix(rows: Sequence[Encoded]) -> int:
    """How many tokens all prompts begin with alike; 0 where computing them once would not pay.

    The last prompt token of a row is never counted: it predicts the first label token.
    """
    prompts = [row.prompt_ids for row in rows]
    first, last = min(prompts), max(prompts)  # in lexicographic order: what these two share, all share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = min(alike, *(len(prompt) - 1 for prompt in prompts))
    return shared if len(rows) > 1 and shared >= SHORTEST_SHARED else 0


def row_coefficients(batch: Sequence[Encoded]) -> list[float]:
    """What each row's NLL is multiplied by in the batch's loss: w / critic rows, 1 / policy rows, 1 / chat rows.

    Taken over the whole batch, so that the gradients of its micro-batches add up to the batch's.
    """
    rows = Counter(row.role for row in batch)
    return [(row.weight if row.role == "critic" else 1.0) / rows[row.role] for row in batch]
