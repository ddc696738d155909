"""Training rows as token ids. Imports no torch."""

from dataclasses import dataclass
from math import exp, fsum
from typing import TYPE_CHECKING

from tasks.datasets.example import Example, RowRole, Sampled, ValueTarget
from tasks.training.records import TrainingError

if TYPE_CHECKING:
    from tasks.chat.tokenizers import ChatTokenizer


class TooLong(Exception):
    """A row does not fit into the context; the message becomes the row's `error`."""


# Token ids, and their probabilities.
Distribution = tuple[tuple[int, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Encoded:
    """An example as token ids. `label_ids` are the tokens of the hidden chain of thought, if there is one, of the
    segments, and the end of turn; of a sampled turn, what was sampled, as one segment; of a row that trains a value
    alone, the end of turn, which has no loss."""

    row_id: str
    role: RowRole
    prompt_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    segment_spans: tuple[tuple[int, int], ...]  # of each segment within label_ids, end excluded
    scored_segment: int | None
    weight: float
    targets: tuple[Distribution, ...]  # what each label token's loss is taken against
    sampled: Sampled | None = None
    value: ValueTarget | None = None

    @property
    def has_label(self) -> bool:
        """Whether its label has a loss; else it trains a value alone."""
        return self.value is None or self.sampled is not None

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
        TooLong: it has more, even after truncation (`tasks.prompting.truncation`). A label is never cut: it would be
            another target.
        TrainingError: the soft targets do not match the tokens of the label.
        tasks.chat.messages.RequestError: the chat template refuses the messages.
    """
    sampled = example.sampled
    thinking = bool(example.reasoning) if sampled is None else sampled.thinking
    prompt = chat.prompt_ids(example.messages, tools=example.tools, thinking=thinking)
    if sampled is None:
        label, spans = _label(example, chat)
    else:
        label, spans = [*sampled.token_ids], [(0, len(sampled.token_ids))]
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
        sampled=sampled,
        value=example.value,
    )


def _label(example: Example, chat: "ChatTokenizer") -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a label that is given as text, and the span of each segment."""
    segments = (
        example.segments if example.answer is None else (chat.answer_text(example.answer, example.tools),)
    )
    label = chat.reasoning_ids(example.reasoning)
    spans = []
    for ids in chat.segment_ids(segments):
        spans.append((len(label), len(label) + len(ids)))
        label.extend(ids)
    return [*label, *chat.end_ids], spans


def soft_distributions(example: Example, tokens: int) -> list[Distribution]:
    """The backup's top-k distributions at the `tokens` tokens of the scored segment, renormalised to sum to 1.

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
