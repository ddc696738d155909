"""Choosing tokens: one random stream, temperature, nucleus, grammar and end for each row of a batch.

`generate` of transformers has one setting for a whole batch. So the choice is made here, in a logits
processor that makes the chosen token the greatest; everything else (cache, positions, masks) stays the
library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xgrammar
from transformers import LogitsProcessor, StoppingCriteria, TopPLogitsWarper

from tasks.engines.base import Completion, Sampling
from tasks.engines.chat import ChatTokenizer

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar


class Row:
    """One completion being written.

    Args:
        sampling: its parameters. The random stream is keyed by the seed alone: Philox is counter-based, so
            the n-th number depends on (seed, n) and on nothing that runs beside it.
        prompt: its prompt token ids.
        stop_ids: tokens that end a turn.
        tokenizer: to find stop strings.
        grammar: what the whole completion must match, compiled.
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
        stream = np.random.Generator(np.random.Philox(key=sampling.seed % 2**64))
        self._uniforms = stream.random(sampling.max_tokens)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish_reason: str | None = None

    @property
    def done(self) -> bool:
        """Nothing more is to be written."""
        return self.finish_reason is not None

    @property
    def uniform(self) -> float:
        """This step's number of the row's own stream, in [0, 1) by a float32's precision."""
        return min(float(self._uniforms[len(self.tokens)]), 1 - 2**-23)

    def choose(self, logits: torch.Tensor) -> tuple[int, float]:
        """Draw the next token by inverse transform sampling.

        Args:
            logits: [vocabulary], raw, float32; overwritten.

        Returns:
            The token, and its log-probability at temperature 1 before any grammar or nucleus.
        """
        sampling = self.sampling
        logprobs = logits.log_softmax(dim=-1)
        if sampling.temperature not in (0.0, 1.0):
            logits /= sampling.temperature
        if self.matcher is not None:
            self.matcher.fill_next_token_bitmask(self._bitmask)
            xgrammar.apply_token_bitmask_inplace(logits[None], self._bitmask.to(logits.device))
        if sampling.temperature == 0:
            token = int(logits.argmax())
            return token, float(logprobs[token])
        if sampling.top_p < 1:
            logits = TopPLogitsWarper(sampling.top_p)(None, logits[None])[0]
        cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
        # right=True: the first token whose cumulative probability exceeds u, so its own is not zero
        token = int(torch.searchsorted(cumulative, self.uniform * float(cumulative[-1]), right=True))
        return token, float(logprobs[token])

    def accept(self, token: int, logprob: float) -> None:
        """Take one chosen token; ends the row at a turn's end, a stop string or the cap."""
        if self.matcher is not None:
            self.matcher.accept_token(token)
        if token in self._stop_ids:
            self._end("stop")
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.sampling.stop:
            self.text = self._tokenizer.decode(self.tokens)
            found = [at for stop in self.sampling.stop if (at := self.text.find(stop)) >= 0]
            if found:
                self._end("stop")
                self.text = self.text[: min(found)]
                return
        if len(self.tokens) >= self.sampling.max_tokens:
            complete = self.matcher is not None and self.matcher.is_completed()
            self._end("stop" if complete else "length")

    def _end(self, reason: str) -> None:
        self.text = self._tokenizer.decode(self.tokens)
        self.finish_reason = reason

    def completion(self) -> Completion:
        """What was written; the end-of-turn token is not part of it."""
        return Completion(
            text=self.text,
            finish_reason=self.finish_reason or "length",
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
        )


class RowSampler(LogitsProcessor):  # type: ignore[misc]
    """Chooses every row's next token, and makes it the greatest logit for `generate` to take.

    Args:
        rows: in batch order.
        pad_id: what finished rows go on with.
        on_done: called with each row as it ends.
    """

    def __init__(self, rows: Sequence[Row], pad_id: int, on_done: Callable[[Row], None]) -> None:
        self.rows, self._pad_id, self._on_done = list(rows), pad_id, on_done

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows, vocabulary] whose argmax is the choice; logits come in raw, in float32."""
        chosen = torch.full((len(self.rows), 1), self._pad_id)
        # Row by row: a row fits into the processor's cache, a whole batch is many passes over main memory.
        for index, row in enumerate(self.rows):
            if not row.done:
                token, logprob = row.choose(scores[index])
                row.accept(token, logprob)
                chosen[index] = token
                if row.done:
                    self._on_done(row)
        return scores.scatter_(1, chosen.to(scores.device), torch.inf)


class Halt(StoppingCriteria):  # type: ignore[misc]
    """Stops `generate` when at most `floor` rows are unfinished, or when the engine is closing.

    Args:
        sampler: whose rows are watched.
        floor: rows that may be left; the caller goes on with those alone, in a smaller batch.
        closing: whether to give up.
    """

    def __init__(self, sampler: RowSampler, floor: int, closing: Callable[[], bool]) -> None:
        self._sampler, self._floor, self._closing = sampler, floor, closing

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """[rows], true everywhere or nowhere: the library stops when all are."""
        left = sum(not row.done for row in self._sampler.rows)
        stop = left <= self._floor or self._closing()
        return torch.full((len(self._sampler.rows),), stop, device=input_ids.device)
