"""Training rows as token ids, and which rows make up which optimizer step. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Literal

from tasks.engines.base import Message

if TYPE_CHECKING:
    from tasks.engines.chat import ChatTokenizer


class TooLong(Exception):
    """A row does not fit into the context. The message is what the row's `error` column will hold."""


@dataclass(frozen=True)
class Example:
    """One row to train on: a prompt, and the label that has the loss.

    The label is tokenised segment by segment, as an engine scores it, so each segment's tokens are known.
    """

    row_id: str
    role: Literal["critic", "policy"]
    messages: tuple[Message, ...]
    segments: tuple[str, ...]  # a critic's: ("Thought: ...\nFuture:", " description")
    scored_segment: int | None = None  # whose log-probabilities become the priority
    weight: float = 1.0  # importance weight; used for critic rows only


@dataclass(frozen=True)
class Encoded:
    """An example as token ids. `label_ids` are the segments' tokens and the end of turn."""

    row_id: str
    role: Literal["critic", "policy"]
    prompt_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    segment_spans: tuple[tuple[int, int], ...]  # of each segment within label_ids, end excluded
    scored_segment: int | None
    weight: float

    @property
    def tokens(self) -> int:
        """Prompt and label together."""
        return len(self.prompt_ids) + len(self.label_ids)


def encode(example: Example, chat: "ChatTokenizer", context_length: int) -> Encoded:
    """Tokenise one example.

    Args:
        example: the row.
        chat: the tokenizer that inference uses too.
        context_length: most tokens a prompt and its label may have together.

    Raises:
        TooLong: it has more. It is not cut: a cut prompt is another state, a cut label another target.
        tasks.engines.base.EngineError: the chat template refuses the messages.
    """
    prompt = chat.answer_prompt_ids(example.messages)
    label: list[int] = []
    spans = []
    for ids in chat.segment_ids(example.segments):
        spans.append((len(label), len(label) + len(ids)))
        label.extend(ids)
    label.extend(chat.end_ids)
    if len(prompt) + len(label) > context_length:
        raise TooLong(
            f"{example.row_id}: {len(prompt)} prompt and {len(label)} label tokens exceed "
            f"model.context_length {context_length}; raise it, or shorten the prompts"
        )
    return Encoded(
        row_id=example.row_id,
        role=example.role,
        prompt_ids=tuple(prompt),
        label_ids=tuple(label),
        segment_spans=tuple(spans),
        scored_segment=example.scored_segment,
        weight=example.weight,
    )


def plan_batches(
    main: Sequence[int], other: Sequence[int], batch_rows: int, mix: float, epochs: int, seed: int
) -> list[list[int]]:
    """Assign rows to optimizer steps.

    A batch has `round(batch_rows * mix)` rows of the other role (as many as there are, at most) and up to
    `batch_rows` less that of the stage's own. Own rows are spread evenly: batch sizes differ by one at most,
    so that no step is taken on a small remainder, whose mean loss would be mostly noise.

    Args:
        main: numbers of the stage's own rows; each is in exactly one batch per epoch.
        other: numbers of the other role's rows; taken in turn from one random order, over and over, so that
            their uses differ by one at most and none is twice in a batch.
        batch_rows: rows in a batch, both roles together.
        mix: share of the other role.
        epochs: passes over `main`.
        seed: determines the plan.

    Returns:
        one list of row numbers per optimizer step.

    Raises:
        ValueError: the mix leaves no place for the stage's own rows.
    """
    others_each = min(round(batch_rows * mix), len(other))
    own_most = batch_rows - others_each
    if own_most < 1:
        raise ValueError(f"mix {mix} of batch_rows {batch_rows} leaves no own row in a batch; lower mix")
    random = Random(seed)
    supply = cycle(random.sample(other, len(other)))
    steps = ceil(len(main) / own_most)
    plan = []
    for _ in range(epochs):
        order = random.sample(main, len(main))
        for step in range(steps):
            own = order[step * len(order) // steps : (step + 1) * len(order) // steps]
            plan.append([*own, *islice(supply, others_each)])
    return plan
