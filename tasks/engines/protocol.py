"""The protocol of language models: chat requests in, completions or scores of given completions out.

It is asynchronous, and each request chooses its adapter. A stage submits all its requests at once; the engine batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tasks.chat.messages import Message, Tool

T = TypeVar("T")


class EngineDied(Exception):
    """The engine has ended or does not start, so the stage fails rather than fill its rows with errors. The message
    says what to do."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter (or a full checkpoint) on disk. `version` names it in every row it writes."""

    version: str
    path: Path
    digest: str

    @property
    def is_lora(self) -> bool:
        """A LoRA adapter, rather than a full checkpoint."""
        return (self.path / "adapter_config.json").is_file()


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request. `temperature` 0 is greedy; `seed` keys the request's own random stream."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 128
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One completion to generate. A `regex` must match the whole completion (structured output), so it rules out
    `thinking`."""

    messages: tuple[Message, ...]
    sampling: Sampling
    adapter: Adapter | None = None  # None: the base model as it is
    regex: str | None = None
    thinking: bool = False  # begin with a hidden chain of thought, if the chat template supports one
    tools: tuple[Tool, ...] = ()  # on offer


@dataclass(frozen=True)
class Completion:
    """A model's response.

    `text` ends before the stop string or end-of-turn token. It includes a hidden chain of thought with both its marks,
    even if the prompt held the opening one, and calls of tools in the form of the model's family
    (`tasks.chat.response_parser` splits them). token_ids and logprobs (nats, at temperature 1 before any grammar mask)
    have one entry per token, and are empty if the engine does not report them. The token that ended the turn, of those
    that can, is not among them. It is None where a limit or a stop string ended the text.
    """

    text: str
    finish_reason: str  # "stop" | "length"
    prompt_tokens: int
    completion_tokens: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    end_token_id: int | None = None
    end_logprob: float | None = None


@dataclass(frozen=True)
class ScoreRequest:
    """A given completion to score, behind a hidden chain of thought where `reasoning` gives one. Segments are tokenised
    separately and concatenated, so that the tokens of each are known; they exclude the end-of-turn token."""

    messages: tuple[Message, ...]
    segments: tuple[str, ...]
    adapter: Adapter | None = None
    top_k: int = 0  # also the k most likely tokens at each position; needs the capability `topk`
    reasoning: str | None = None  # is not scored itself


@dataclass(frozen=True)
class Scores:
    """Per segment, the log-probability (nats, temperature 1) of each token given all before it.

    top_ids and top_logprobs: per segment and token, the `top_k` most likely tokens at that position, most likely
    first (at most the vocabulary); empty without `top_k`.
    """

    segments: tuple[tuple[float, ...], ...]
    top_ids: tuple[tuple[tuple[int, ...], ...], ...] = ()
    top_logprobs: tuple[tuple[tuple[float, ...], ...], ...] = ()


def make_scores(
    segments: Sequence[Sequence[int]],
    logprobs: Iterable[float],
    top: Iterable[tuple[Sequence[int], Sequence[float]]] | None = None,
) -> Scores:
    """Scores of successive tokens, cut into segments.

    Args:
        segments: token ids; only the lengths count.
        logprobs: one per token.
        top: ids and log-probabilities of the most likely tokens, one pair per token; None without `top_k`.
    """
    cut = _by_segment(segments, logprobs)
    if top is None:
        return Scores(cut)
    pairs = _by_segment(segments, ((tuple(ids), tuple(values)) for ids, values in top))
    return Scores(
        cut,
        tuple(tuple(ids for ids, _ in segment) for segment in pairs),
        tuple(tuple(values for _, values in segment) for segment in pairs),
    )


def pick_scores(
    segments: Sequence[Sequence[int]], reported: Iterable[Mapping[int, float]], top_k: int
) -> Scores:
    """Scores from vLLM's report.

    Args:
        segments: token ids.
        reported: per token, log-probabilities of that token and of at least the `top_k` most likely at its position.
        top_k: of the request.
    """
    positions = list(reported)
    tokens = (token for segment in segments for token in segment)
    given = [position[token] for token, position in zip(tokens, positions, strict=True)]
    return make_scores(segments, given, [most_likely(p, top_k) for p in positions] if top_k else None)


def most_likely(logprobs: Mapping[int, float], k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log-probabilities of the k most likely tokens. Servers report the given token in addition to k."""
    first = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[:k]
    return tuple(token for token, _ in first), tuple(value for _, value in first)


def _by_segment(segments: Sequence[Sequence[int]], values: Iterable[T]) -> tuple[tuple[T, ...], ...]:
    flat = iter(values)
    return tuple(tuple(next(flat) for _ in segment) for segment in segments)


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. A configuration whose roles need more is refused."""

    structured: bool = False  # Request.regex
    scoring: bool = False  # score()
    topk: bool = False  # ScoreRequest.top_k
    adapters: bool = False  # Request.adapter
    token_ids: bool = False  # Completion.token_ids and .logprobs


FULL_CAPABILITIES = Capabilities(structured=True, scoring=True, topk=True, adapters=True, token_ids=True)
"""Of engines that tokenise the prompts themselves."""


class Engine(Protocol):
    """An inference backend. Safe to call from many asyncio tasks at once."""

    capabilities: Capabilities

    async def generate(self, request: Request) -> Completion:
        """Generate one completion.

        Raises:
            RequestError: this request can't be answered (too long for the context, refused by the server ...).
        """
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """Log-probabilities of a given completion.

        Raises:
            RequestError: as for generate, or the engine does not declare `scoring` (with top_k, `topk`).
        """
        ...

    async def close(self) -> None:
        """Free the model, threads and child processes. Idempotent."""
        ...
