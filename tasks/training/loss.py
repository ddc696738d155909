"""The losses L1 and L2. Logits are computed only where a label token is predicted.

A batch's loss is the mean over critic rows of w * NLL plus the mean over policy rows of w * NLL plus the mean over
rows of general chat of NLL, where NLL is a row's mean over its label tokens (nats per token). So a long label counts as
much as a short one, and no role's part depends on how many rows the others have. The anchor adds its coefficient times
the mean of KL(p_theta || p_base) over the label tokens of the stage's own rows (`anchor`).

A token's loss is the cross-entropy -sum_v p(v) log p_theta(v) against a target distribution p: all on the label's
token (sft), or, where a row has soft targets, the backup's renormalised top-k (token_kl).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch
from transformers import PreTrainedModel

from tasks.training.data import Encoded
from tasks.training.fused.packing import LEAST_SPARED, hidden_states
from tasks.training.vocabulary_losses import VocabularyLosses, in_chunks


def label_logprobs(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Log-probabilities (nats) of each row's label tokens, each given all tokens before it.

    Returns:
        for each row float32 [its label tokens].
    """
    labels = torch.tensor([token for row in rows for token in row.label_ids], device=model.device)
    states = label_states(model, rows, dtype)
    losses = _cross_entropies(model, states, labels[:, None], torch.ones_like(labels)[:, None], dtype)
    logprobs: tuple[torch.Tensor, ...] = (-losses).split([len(row.label_ids) for row in rows])
    return logprobs


def token_losses(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every label token, row after row, against the row's hard or soft targets.

    Args:
        model: its logits are its output embedding applied to its last hidden state.
        rows: R rows.
        dtype: of matrix products (`model.dtype`).

    Returns:
        float32 [label tokens of all rows], and the hidden states that predict them, as `label_states`.
    """
    ids, shares = targets(rows)
    states = label_states(model, rows, dtype)
    return _cross_entropies(model, states, ids.to(model.device), shares.to(model.device), dtype), states


def targets(rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Target distributions of all label tokens: token ids and their probabilities, both [N, K].

    K is 1 where all targets are hard. A position with fewer tokens is padded with token 0 at probability 0.
    """
    distributions = [distribution for row in rows for distribution in row.targets]
    most = max(len(ids) for ids, _ in distributions)
    fill = [(0,) * (most - size) for size in range(most + 1)]
    ids = torch.tensor([ids + fill[len(ids)] for ids, _ in distributions])
    shares = torch.tensor([shares + fill[len(shares)] for _, shares in distributions])
    return ids, shares


def _cross_entropies(
    model: PreTrainedModel,
    states: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """-sum_v p(v) log p_theta(v) at every label token; ids and shares [N, K] are p, the result is [N]."""
    head = model.get_output_embeddings()

    def cross_entropies(states: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = VocabularyLosses.apply(head(states), ids, shares)  # type: ignore[no-untyped-call]
        return losses[0]

    with autocast(model, dtype):
        return in_chunks(cross_entropies, head.weight.shape[0], (states, ids, shares))


def autocast(model: PreTrainedModel, dtype: torch.dtype) -> torch.autocast:
    """With bfloat16 the matrix products are in bfloat16, else everything is in the weights' own type.

    Enter it once per forward pass: it keeps its bfloat16 copies of float32 weights until it is left, so around a
    training loop it would never see an update.
    """
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def label_states(
    model: PreTrainedModel, rows: Sequence[Encoded], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Last hidden states [N, H] where a label token is predicted, row after row."""
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
    """How many tokens all prompts have in common at their beginning; 0 where computing them once would not pay.

    The last prompt token of a row is never counted, because it predicts the first label token.
    """
    prompts = [row.prompt_ids for row in rows]
    first, last = min(prompts), max(prompts)  # lexicographic: what these two share, all share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = min(alike, *(len(prompt) - 1 for prompt in prompts))
    return shared if shared * (len(rows) - 1) >= LEAST_SPARED else 0


def row_coefficients(batch: Sequence[Encoded]) -> list[float]:
    """The factor of each row's NLL in the batch's loss: w / rows of its role, and 0 for a row without a label.

    Computed over the whole batch, so that the gradients of its micro-batches add up to the batch's.
    """
    rows = Counter(row.role for row in batch if row.has_label)
    return [row.weight / rows[row.role] if row.has_label else 0.0 for row in batch]
