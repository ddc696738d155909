"""Samples tokens, with a random stream, temperature, top-p, grammar and stop condition per row of a batch.

`generate` of transformers has one setting for a whole batch. So a logits processor samples here and makes the sampled
token the greatest; the cache, positions and masks stay the library's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xgrammar
from transformers import LogitsProcessor, StoppingCriteria, TopPLogitsWarper

from tasks.chat.tokenizers import ChatTokenizer
from tasks.engines.protocol import Completion, Sampling

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

CACHED_LOGITS = 1 << 16  # sampled from at once on CPU: 256 KiB in float32

_PHILOX = np.random.Philox(key=0)
_STREAM = np.random.Generator(_PHILOX)
_KEYED = _PHILOX.state
_ONE_AT_A_TIME = threading.Lock()


def uniforms(seed: int, count: int) -> np.ndarray:
    """The first `count` numbers of the Philox stream with this key, in [0, 1).

    One generator is reset for each stream, because a new generator first draws entropy from the system.
    """
    with _ONE_AT_A_TIME:
        _KEYED["state"]["key"][:] = (seed % 2**64, 0)
        _PHILOX.state = _KEYED
        return _STREAM.random(count)


class Row:
    """One completion being written.

    Args:
        sampling: its parameters. The seed alone keys the random stream: Philox is counter-based, so the n-th number
            depends only on (seed, n).
        prompt: token ids.
        stop_ids: tokens that end a turn.
        tokenizer: decodes the text, to find stop strings.
        grammar: compiled regex that the whole completion must match.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: frozenset[int],
        tokenizer: ChatTokenizer,
        grammar: CompiledGrammar | None = None,
    ) -> None:
        self.sampling, self.prompt = sampling, list(prompt)
        self._stop_ids, self._tokenizer = stop_ids, tokenizer
        self.matcher = None
        if grammar is not None:
            self.matcher = xgrammar.GrammarMatcher(grammar)
            self._bitmask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        self._uniforms = uniforms(sampling.seed, sampling.max_tokens)
        self.cancelled = False
        self.restart()

    def restart(self) -> None:
        """Begin the completion again. Its random stream gives the same numbers."""
        if self.matcher is not None:
            self.matcher.reset()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.end: tuple[int | None, float | None] = (
            None,
            None,
        )  # token that ended the turn, its log-probability
        self.text = ""
        self.finish_reason: str | None = None

    @property
    def done(self) -> bool:
        """Whether no more tokens follow."""
        return self.cancelled or self.finish_reason is not None

    @property
    def uniform(self) -> float:
        """This step's number in the row's random stream, in [0, 1) also as a float32."""
        return min(float(self._uniforms[len(self.tokens)]), 1 - 2**-23)

    def allowed(self) -> torch.Tensor | None:
        """Bitmask [1, words] of the tokens that the grammar allows next; None without a grammar."""
        if self.matcher is not None:
            self.matcher.fill_next_token_bitmask(self._bitmask)
            return self._bitmask
        return None

    def accept(self, token: int, logprob: float) -> None:
        """Append a sampled token; ends the row at the end of the turn, a stop string or max_tokens."""
        if self.matcher is not None:
            self.matcher.accept_token(token)
        if token in self._stop_ids:
            self.end = token, logprob
            self._end("stop")
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.sampling.stop:
            self.text = self._tokenizer.completion_text(self.prompt, self.tokens)
            found = [at for stop in self.sampling.stop if (at := self.text.find(stop)) >= 0]
            if found:
                self._end("stop")
                self.text = self.text[: min(found)]
                return
        if len(self.tokens) >= self.sampling.max_tokens:
            self._end("stop" if self._has_to_end() else "length")

    def _has_to_end(self) -> bool:
        """Whether the grammar allows no more text. Where it allows some, a text that it matches may still be cut."""
        if self.matcher is None or not self.matcher.is_completed():
            return False
        self.matcher.fill_next_token_bitmask(self._bitmask)
        allowed = np.unpackbits(self._bitmask.numpy().view(np.uint8), bitorder="little")
        return self._stop_ids.issuperset(np.flatnonzero(allowed).tolist())

    def _end(self, reason: str) -> None:
        self.text = self._tokenizer.completion_text(self.prompt, self.tokens)
        self.finish_reason = reason

    def completion(self) -> Completion:
        """The finished completion, without the end-of-turn token."""
        return Completion(
            text=self.text,
            finish_reason=self.finish_reason or "length",
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            end_token_id=self.end[0],
            end_logprob=self.end[1],
        )


def draw(rows: Sequence[Row], logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Sample each row's next token, by inverse transform sampling with its own random number.

    Args:
        rows: R unfinished rows.
        logits: [R, vocabulary], raw, float32; overwritten.

    Returns:
        The tokens, and their log-probabilities (nats) at temperature 1 before grammar and top-p.
    """
    logprobs = logits.log_softmax(dim=-1)
    # temperature 0 is greedy, where the scale has no effect
    temperatures = [row.sampling.temperature or 1.0 for row in rows]
    if any(t != 1.0 for t in temperatures):
        logits /= torch.tensor(temperatures, device=logits.device)[:, None]
    for index, row in enumerate(rows):
        if (bitmask := row.allowed()) is not None:
            xgrammar.apply_token_bitmask_inplace(logits[index : index + 1], bitmask.to(logits.device))
        if row.sampling.top_p < 1:
            logits[index] = TopPLogitsWarper(row.sampling.top_p)(None, logits[index : index + 1])[0]
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    uniforms = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=logits.device)
    reached = (uniforms * cumulative[:, -1]).to(cumulative.dtype)
    # right=True: the first token whose cumulative probability exceeds u, so a token of probability 0 is never drawn
    tokens = torch.searchsorted(cumulative, reached[:, None], right=True)
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=logits.device)
    tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
    return tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist()


def advance(rows: Sequence[Row], logits: torch.Tensor, on_done: Callable[[Row], None]) -> dict[int, int]:
    """Sample and append the next token of every unfinished row; returns the tokens by row index.

    Args:
        rows: R rows.
        logits: [R, vocabulary], raw, float32; overwritten.
        on_done: called with each row as it ends.
    """
    chosen = {}
    left = [index for index, row in enumerate(rows) if not row.done]
    # A few rows at a time fit into the CPU's cache; a whole batch would take many passes over main memory.
    together = len(rows) if logits.is_cuda else max(1, CACHED_LOGITS // logits.shape[1])
    for start in range(0, len(left), together):
        some = left[start : start + together]
        whole = len(some) == len(rows)
        tokens, logprobs = draw([rows[i] for i in some], logits if whole else logits[some])
        for index, token, logprob in zip(some, tokens, logprobs, strict=True):
            row = rows[index]
            row.accept(token, logprob)
            chosen[index] = token
            if row.done:
                on_done(row)
    return chosen


class RowSampler(LogitsProcessor):
    """Samples every row's next token, and makes its logit the greatest, so that `generate` picks it.

    Finished rows get `pad_id`; `on_done` is called with each row as it ends.
    """

    def __init__(self, rows: Sequence[Row], pad_id: int, on_done: Callable[[Row], None]) -> None:
        self.rows, self._pad_id, self._on_done = list(rows), pad_id, on_done

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary], raw in float32; the argmax of the result is the sampled token."""
        chosen = torch.full((len(self.rows), 1), self._pad_id)
        for index, token in advance(self.rows, scores, self._on_done).items():
            chosen[index] = token
        return scores.scatter_(1, chosen.to(scores.device), torch.inf)


class Halt(StoppingCriteria):
    """Stops `generate` when at most `floor` rows are unfinished, or when the engine is closing."""

    def __init__(self, sampler: RowSampler, floor: int, closing: Callable[[], bool]) -> None:
        self._sampler, self._floor, self._closing = sampler, floor, closing

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """[rows], all true or all false: the library stops when all are true."""
        left = sum(not row.done for row in self._sampler.rows)
        stop = left <= self._floor or self._closing()
        return torch.full((len(self._sampler.rows),), stop, device=input_ids.device)
