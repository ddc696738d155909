"""Rows for the tiny model, and their log-probabilities the slow way."""

import torch
from transformers import PreTrainedModel

from tasks.training.data import Encoded, Example


def critic(number: int, weight: float = 1.0) -> Example:
    """A critic row; prompts and labels differ in length from row to row."""
    return Example(
        row_id=f"critic/{number}",
        role="critic",
        messages=(
            {
                "role": "user",
                "content": f"In this game the last guess was {number}." + " Next?" * (number % 4),
            },
        ),
        segments=("Thought: low\nFuture:", " it fails" + " soon" * (number % 3)),
        scored_segment=1,
        weight=weight,
    )


def policy(number: int) -> Example:
    """A policy row."""
    return Example(
        row_id=f"policy/{number}",
        role="policy",
        messages=({"role": "user", "content": f"Guess! You know {'more' * number}."},),
        segments=(f"Thought: try\nAction: [{number}]",),
    )


def by_hand(model: PreTrainedModel, row: Encoded) -> torch.Tensor:
    """Row alone, full logits, log-softmax, one position at a time."""
    ids = [*row.prompt_ids, *row.label_ids]
    logprobs = model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
    first = len(row.prompt_ids)
    return torch.stack([logprobs[first + i - 1, token] for i, token in enumerate(row.label_ids)])
