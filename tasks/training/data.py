"""Training rows as token ids, and which rows make up which optimizer step. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, exp, fsum
from random import Random
from typing import TYPE_CHECKING

from tasks.datasets.example import Example, RowRole
from tasks.training.records import TrainingError

if TYPE_CHECKING:
    from tasks.chat.tokenizers import ChatTokenizer


class TooLong(Exception):
    """A row does not fit into the context. The message is what the row's `error` column will hold."""


# Token ids, and their probabilities.
Distribution = tuple[tuple[int, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Encoded:
    """An example as token ids. `label_ids` are the segments' tokens and the end of turn."""

    row_id: str
    role: RowRole
    prompt_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    segment_spans: tuple[tuple[int, int], ...]  # of each segment within label_ids, end excluded
    scored_segment: int | None
    weight: float
    targets: tuple[Distribution, ...]  # what each label token's loss is taken against

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
        TooLong: it has more, even with all left out that may be (`tasks.prompting.truncation`). A label is never cut:
            that would be another target.
        TrainingError: its soft targets are of other tokens.
        tasks.chat.messages.RequestError: the chat template refuses the messages.
    """
    prompt = chat.prompt_ids(example.messages, tools=example.tools)
    segments = (
        example.segments if example.answer is None else (chat.answer_text(example.answer, example.tools),)
    )
    label: list[int] = []
    spans = []
    for ids in chat.segment_ids(segments):
        spans.append((len(label), len(label) + len(ids)))
        label.extend(ids)
    label.extend(chat.end_ids)
    if len(prompt) + len(label) > context_length:
        raise TooLong(
            f"{example.row_id}: {len(prompt)} prompt and {len(label)} label tokens exceed "
            f"model.context_length {context_length}; raise it, or shorten the prompts"
        )
    targets: list[Distribution] = [((token,), (1.0,)) for token in label]
    if example.soft is not None:
        begin, end = spans[example.scored_segment or 0]
        targets[begin:end] = soft_distributions(example, end - begin)
    return Encoded(
        row_id=example.row_id,
        role=example.role,
        prompt_ids=tuple(prompt),
        label_ids=tuple(label),
        segment_spans=tuple(spans),
        scored_segment=example.scored_segment,
        weight=example.weight,
        targets=tuple(targets),
    )


def soft_distributions(example: Example, tokens: int) -> list[Distribution]:
    """The backup's distributions over its top-k, renormalised: they sum to 1 whatever mass lies outside.

    Args:
        example: with soft targets.
        tokens: of its scored segment.

    Raises:
        TrainingError: they are of another number of tokens.
    """
    assert example.soft is not None
    if not len(example.soft.ids) == len(example.soft.logprobs) == tokens:
        raise TrainingError(
            f"{example.row_id}: top-k log-probabilities of {len(example.soft.ids)} tokens for a description of "
            f"{tokens}; backup.loss token_kl needs a bootstrap engine that has the tokenizer of model.name"
        )
    distributions = []
    for ids, logprobs in zip(example.soft.ids, example.soft.logprobs, strict=True):
        most = max(logprobs)
        masses = [exp(value - most) for value in logprobs]
        total = fsum(masses)
        distributions.append((tuple(ids), tuple(mass / total for mass in masses)))
    return distributions


def plan_batches(
    main: Sequence[int],
    other: Sequence[int],
    batch_rows: int,
    mix: float,
    epochs: int,
    seed: int,
    chat: Sequence[int] = (),
    chat_share: float = 0.0,
) -> list[list[int]]:
    """Assign rows to optimizer steps.

    A batch has `round(batch_rows * mix)` rows of the other role and `round(batch_rows * chat_share)` of general chat
    (of each as many as there are, at most), and up to `batch_rows` less those of the stage's own. Own rows are spread
    evenly: batch sizes differ by one at most, so that no step is taken on a small remainder, whose mean loss would be
    mostly noise.

    Args:
        main: numbers of the stage's own rows; each is in exactly one batch per epoch.
        other: numbers of the other role's rows; taken in turn from one random order, over and over, so that
            their uses differ by one at most and none is twice in a batch.
        batch_rows: rows in a batch, all together.
        mix: share of the other role.
        epochs: passes over `main`.
        seed: determines the plan.
        chat: numbers of the rows of general chat, taken as those of the other role.
        chat_share: their share.

    Returns:
        one list of row numbers per optimizer step.

    Raises:
        ValueError: the shares leave no place for the stage's own rows.
    """
    others_each = min(round(batch_rows * mix), len(other))
    chats_each = min(round(batch_rows * chat_share), len(chat))
    own_most = batch_rows - others_each - chats_each
    if own_most < 1:
        raise ValueError(
            f"mix {mix:g} and chat_share {chat_share:g} of batch_rows {batch_rows} leave no own row in a batch; "
            "lower mix or chat_share"
        )
    random = Random(seed)
    supply = cycle(random.sample(other, len(other)))
    chats = cycle(Random(f"chat {seed}").sample(chat, len(chat)))  # leaves the order of the others as it is
    steps = ceil(len(main) / own_most)
    plan = []
    for _ in range(epochs):
        order = random.sample(main, len(main))
        for step in range(steps):
            own = order[step * len(order) // steps : (step + 1) * len(order) // steps]
            plan.append([*own, *islice(supply, others_each), *islice(chats, chats_each)])
    return plan
