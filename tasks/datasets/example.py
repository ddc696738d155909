"""One row to train on, as the datasets make it and the trainer reads it."""

from dataclasses import dataclass
from typing import Literal

from tasks.chat.messages import Message, Tool
from tasks.prompting.truncation import NOTHING, Dropped

# Decides the prompt and the loss. "chat" is general conversation; "demonstration" is a row of any role.
RowRole = Literal["critic", "policy", "chat", "demonstration"]


@dataclass(frozen=True)
class SoftTargets:
    """The backup's top-k distribution at each token of the scored segment, as an engine scored it."""

    ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]  # nats


@dataclass(frozen=True)
class Sampled:
    """A turn as the policy sampled it, and its advantage: what the clipped-ratio loss is computed from.

    The label is what was sampled, token by token, and not its text tokenised again.
    """

    token_ids: tuple[int, ...]  # with the one that ended the turn, where one did
    logprobs: tuple[float, ...]  # of these tokens, as the engine reported them (nats)
    thinking: bool  # whether its prompt began a hidden chain of thought
    advantage: float = 0.0
    episode_id: str = ""  # the normalisation knows its tokens over all turns


@dataclass(frozen=True)
class ValueTarget:
    """What a value head is to predict at the end of a prompt: V(s), or Q(s, a) where the prompt shows an action."""

    target: float
    old: float = 0.0  # its value before the stage, where its loss is clipped


@dataclass(frozen=True)
class Example:
    """A prompt, and the label that has the loss.

    The label is tokenised segment by segment, as an engine scores it, so the tokens of each segment are known.
    """

    row_id: str
    role: RowRole
    messages: tuple[Message, ...]
    segments: tuple[str, ...]  # a critic's: ("Thought: ...\nFuture:", " description")
    scored_segment: int | None = None  # whose log-probabilities become the priority
    weight: float = 1.0  # of its loss within its role's mean; a sampled turn has an advantage instead
    soft: SoftTargets | None = None  # token_kl: targets of the scored segment; other label tokens stay hard
    tools: tuple[Tool, ...] = ()  # on offer in the prompt
    answer: Message | None = None  # the label as a message in the family's own format; replaces `segments`
    reasoning: str | None = None  # hidden chain of thought that begins the label, in the family's own form
    sampled: Sampled | None = None  # replaces the label; `segments` are its text
    value: ValueTarget | None = None  # without `sampled` it is all that the row trains: it has no label
    dropped: Dropped = NOTHING  # what was left out of the prompt to fit it into the context
