"""The losses L1 and L2: cross-entropy of label tokens, with logits nowhere else.

A batch's loss is the mean over critic rows of w * NLL plus the mean over policy rows of NLL, where NLL is a
row's mean over its label tokens (nats per token). So a long label counts as much as a short one, and neither
role's part depends on how many rows the other has.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tasks.training.data import Encoded

# Label positions whose logits exist at once: with a vocabulary of 150k in float32, 300 MB.
CHUNK = 512
# A shorter common beginning is not worth a forward pass of its own.
SHORTEST_SHARED = 32


def label_logprobs(model: PreTrainedModel, rows: Sequence[Encoded]) -> tuple[torch.Tensor, ...]:
    """Log-probabilities (nats) of each row's label tokens, each given all tokens before it.

    Hidden states are gathered where a label token is predicted, so the vocabulary-wide product is never done
    over a prompt; it is recomputed on the way back, chunk by chunk, rather than kept.

    Over a bfloat16 model matrix products are in bfloat16 (autocast), over a float32 model all is float32.
    Autocast is entered here, once a forward pass, because it keeps its bfloat16 copies of the float32 adapter
    weights until it is left: entered around a training loop it would never see an update.

    Args:
        model: a causal model whose logits are its output embedding applied to its last hidden state.
        rows: R rows.

    Returns:
        R float32 tensors, each [label tokens of the row].
    """
    head = model.get_output_embeddings()
    shared = shared_prefix(rows)
    autocast = torch.autocast(
        model.device.type, dtype=torch.bfloat16, enabled=head.weight.dtype == torch.bfloat16
    )
    with autocast:
        hidden = _hidden(model, rows, shared)
    predicting = [
        number * hidden.shape[1] + position - shared
        for number, row in enumerate(rows)
        for position in range(len(row.prompt_ids) - 1, row.tokens - 1)
    ]
    states = hidden.flatten(0, 1)[torch.tensor(predicting, device=model.device)]
    labels = torch.tensor([token for row in rows for token in row.label_ids], device=model.device)

    def chunk_logprobs(some_states: torch.Tensor, some_labels: torch.Tensor) -> torch.Tensor:
        return -cross_entropy(head(some_states).float(), some_labels, reduction="none")

    with autocast:
        parts = [
            checkpoint(chunk_logprobs, *chunk, use_reentrant=False)
            for chunk in zip(states.split(CHUNK), labels.split(CHUNK), strict=True)
        ]
    return torch.cat(parts).split([len(row.label_ids) for row in rows])


def shared_prefix(rows: Sequence[Encoded]) -> int:
    """How many tokens all prompts begin with alike; 0 where computing them once would not pay.

    The last prompt token of a row is never counted: it predicts the first label token.
    """
    prompts = [row.prompt_ids for row in rows]
    first, last = min(prompts), max(prompts)  # in lexicographic order: what these two share, all share
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = min(alike, *(len(prompt) - 1 for prompt in prompts))
    return shared if len(rows) > 1 and shared >= SHORTEST_SHARED else 0


def _hidden(model: PreTrainedModel, rows: Sequence[Encoded], shared: int) -> torch.Tensor:
    """Last hidden states [R, T, H] of all tokens but the first `shared` and each row's last.

    What prompts begin with alike (instructions, rules of the game) is computed once and its keys and values
    are repeated; gradients flow back through them. Rows are padded on the right and no padding mask is given:
    with causal attention no real token sees the padding, and the fast attention kernels take no mask.
    """
    decoder, device = model.get_decoder(), model.device
    cache = None
    if shared:
        prefix = torch.tensor([rows[0].prompt_ids[:shared]], device=device)
        cache = decoder(input_ids=prefix, use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(rows))
    width = max(row.tokens for row in rows)
    # Any id pads, since nothing looks at it. A row's last token predicts nothing that is needed.
    padded = [[*row.prompt_ids, *row.label_ids, *[0] * (width - row.tokens)][shared:-1] for row in rows]
    ids = torch.tensor(padded, device=device)
    hidden: torch.Tensor = decoder(
        input_ids=ids, past_key_values=cache, use_cache=cache is not None
    ).last_hidden_state
    return hidden


def row_coefficients(batch: Sequence[Encoded]) -> list[float]:
    """What each row's NLL is multiplied by in the batch's loss: w / critic rows, or 1 / policy rows.

    Taken over the whole batch, so that the gradients of its micro-batches add up to the batch's.
    """
    critic = sum(row.role == "critic" for row in batch)
    policy = len(batch) - critic
    return [row.weight / critic if row.role == "critic" else 1.0 / policy for row in batch]
