"""Continuous batching: a waiting request takes the slot of a finished row at once.

Each step decodes one token of every row. Between steps, the prompts of new requests are prefilled into free slots of
the KV cache. The prefix that a prompt shares with an earlier row (an episode's previous turns, the instructions) is
copied from the prefix cache instead.

Samples of one prompt are one text until they differ. A text has one slot, and a step computes it once. Each sample
draws its token with its own random stream. Those that draw another token than the first get a copy of the slot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.chat.messages import RequestError
from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import KVCache
from tasks.engines.local.prefix_cache import Entry, PrefixCache, Text
from tasks.engines.local.prompt_reading import PromptReader
from tasks.engines.local.sampler import Row, advance

if TYPE_CHECKING:
    from transformers import PreTrainedModel

JOIN_SHARE = (
    8  # prefill once an eighth of the slots is free: several prompts together are faster than one by one
)


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """Payload of a job: a request's row, and its prompt as the key for the prefix cache."""

    row: Row
    text: Text


@dataclass(eq=False)
class Written:
    """A text in its slot of the KV cache, and the samples that are this text so far: at least one, and none is done
    when a step begins."""

    jobs: list[Job]
    entry: Entry

    @property
    def tokens(self) -> list[int]:
        """Of the prompt and the completion."""
        row: Row = self.jobs[0].payload.row
        return row.prompt + row.tokens


class ContinuousBatch:
    """Decodes rows under one adapter until none is left.

    Args:
        model: the model under that adapter; must satisfy `tasks.engines.local.kv_cache.fits`.
        owner: digest of the adapter; '' for none.
        prefix_cache: of this and earlier batches.
        size: most rows at once.
        pad_id: pads prompts that are prefilled together.
    """

    def __init__(
        self, model: PreTrainedModel, owner: str, prefix_cache: PrefixCache, size: int, pad_id: int
    ) -> None:
        self._model, self._owner, self._prefix_cache, self._size = model, owner, prefix_cache, size
        self._cache = KVCache(model, size)
        self._reader = PromptReader(model, prefix_cache, self._cache, pad_id)
        self._texts: list[Written] = []  # by slot

    def run(self, jobs: list[Job], more: Callable[[int], list[Job]], closing: Callable[[], bool]) -> None:
        """Decode until no row and no waiting request is left.

        Args:
            jobs: the first requests; payloads are `GenerationRequest`.
            more: returns waiting requests of the same group, at most the given number.
            closing: whether to give up.

        Raises:
            RequestError: the engine is closing.
        """
        try:
            while jobs or self._texts:
                self._join(jobs)
                self._write()
                if self._texts and closing():
                    raise RequestError("the engine was closed while this request ran")
                room = self._size - sum(len(text.jobs) for text in self._texts)
                jobs = more(room) if room >= max(1, self._size // JOIN_SHARE) or not self._texts else []
        finally:
            for text in self._texts:
                self._prefix_cache.drop(text.entry)

    def _write(self) -> None:
        """Decode one token of every sample; texts part where it differs, and those whose samples are done leave."""
        written = [text.tokens for text in self._texts]
        last = torch.tensor([[tokens[-1]] for tokens in written])
        logits = self._cache.decode(self._model, [len(tokens) - 1 for tokens in written], last).float()
        jobs = {job.payload.row: job for text in self._texts for job in text.jobs}
        slots = [slot for slot, text in enumerate(self._texts) for _ in text.jobs]
        own = logits if len(slots) == len(written) else logits[slots]
        advance(list(jobs), own, lambda row: jobs[row].finish(row.completion()))
        for slot in reversed(range(len(written))):
            self._part(slot, written[slot])

    def _part(self, slot: int, held: Sequence[int]) -> None:
        """Give a slot to the samples that drew one token, and copies of it to the others.

        Args:
            slot: of a text.
            held: the tokens in it.
        """
        text = self._texts[slot]
        alike = defaultdict[int, list[Job]](list)
        for job in text.jobs:
            row: Row = job.payload.row
            if not row.done:
                alike[row.tokens[-1]].append(job)
        if not alike:
            self._leave(slot, held)
            return
        text.jobs, *others = alike.values()
        for jobs in others:
            free = len(self._texts)
            self._cache.place(free, self._cache.held(slot, len(held)), len(held))
            self._texts.append(Written(jobs, self._prefix_cache.add(text.entry.text, free)))

    def _leave(self, slot: int, held: Sequence[int]) -> None:
        """Free a slot. The last text moves into it, so that the texts fill the first slots."""
        gone, last = self._texts[slot], self._texts.pop()
        self._prefix_cache.finish(gone.entry, Text(self._owner, held), self._cache)
        if last is not gone:
            tokens = len(last.tokens) - 1  # the next step reads the last one
            self._cache.place(slot, self._cache.held(len(self._texts), tokens), tokens)
            last.entry.slot = slot
            self._texts[slot] = last

    def _join(self, jobs: Sequence[Job]) -> None:
        """Prefill the prompts of new requests into free slots."""
        for numbers, entry in self._reader.read([job.payload.text for job in jobs], len(self._texts)):
            self._texts.append(Written([jobs[number] for number in numbers], entry))
