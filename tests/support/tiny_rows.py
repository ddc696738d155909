"""Rows for the tiny model, and their log-probabilities the slow way."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from schemas.config import AnchorSection, ModelSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import Example, Sampled
from tasks.training.data import Encoded, encode
from tasks.training.job import MixedRows, OnStep, Rows, Start, TrainingJob
from tasks.training.records import TrainingResult
from tasks.training.trainable import Trainable
from tasks.training.trainer import train


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


def sampled(number: int, tokens: Sequence[int], advantage: float, *, episode: str = "") -> Example:
    """A turn that the policy sampled, of an episode of its own unless one is named; the engine reported -1 for each
    token."""
    return Example(
        row_id=f"turn/{number}",
        role="policy",
        messages=({"role": "user", "content": f"Guess! You know {'more' * number}."},),
        segments=("",),
        scored_segment=0,
        sampled=Sampled(
            tuple(tokens), (-1.0,) * len(tokens), False, advantage, episode or f"episode/{number}"
        ),
    )


def by_hand(model: PreTrainedModel, row: Encoded) -> torch.Tensor:
    """Row alone, full logits, log-softmax, one position at a time."""
    ids = [*row.prompt_ids, *row.label_ids]
    logprobs = model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
    first = len(row.prompt_ids)
    return torch.stack([logprobs[first + i - 1, token] for i, token in enumerate(row.label_ids)])


CRITICS, POLICIES = [critic(i, 0.2 + i / 10) for i in range(6)], [policy(i) for i in range(3)]


def tiny_job(
    model: ModelSection,
    out: Path,
    section: TrainingSection,
    *,
    main: Sequence[Example] = CRITICS,
    other: Sequence[Example] = POLICIES,
    mix: float = 0.25,
    chat: Sequence[Example] = (),
    demonstrations: Sequence[Example] = (),
    rehearse_share: float = 0.0,
    start: Path | None = None,
    target: Path | None = None,
    optimizer: Path | None = None,
    anchored_to: Path | None = None,
    tau: float | None = 0.5,
    **more: Any,
) -> TrainingJob:
    """CRITICS with POLICIES mixed in."""
    return TrainingJob(
        model=model,
        section=section,
        rows=Rows(
            main,
            [
                MixedRows("mix", mix, other),
                MixedRows("chat_share", more.get("anchor", AnchorSection()).chat_share, chat),
                MixedRows("rehearse_share", rehearse_share, demonstrations),
            ],
        ),
        seed=7,
        out=out,
        start=Start(start, target, optimizer, anchored_to),
        tau=tau,
        **more,
    )


def train_tiny(
    model: ModelSection,
    out: Path,
    section: TrainingSection,
    on_step: OnStep = lambda record, total: None,
    **changes: Any,
) -> TrainingResult:
    """Train on CRITICS, with POLICIES mixed in; `changes` are arguments of `tiny_job`."""
    return train(tiny_job(model, out, section, **changes), on_step)


def encoded(chat: ChatTokenizer, examples: Sequence[Example]) -> list[Encoded]:
    return [encode(example, chat, 256) for example in examples]


def gradients(trainable: Trainable) -> dict[str, torch.Tensor]:
    """Gradients by name, which are then gone from the parameters."""
    taken = {name: p.grad.clone() for name, p in trainable.parameters.items() if p.grad is not None}
    for parameter in trainable.parameters.values():
        parameter.grad = None
    return taken


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys() and one
    return all((one[name] - other[name]).norm() <= 1e-4 * other[name].norm() for name in one)
