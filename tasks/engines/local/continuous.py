"""Continuous batching: a waiting request takes the slot of a finished row at once.

Each step decodes one token of every row. Between steps, the prompts of new requests are prefilled into free slots of
the KV cache. The prefix that a prompt shares with an earlier row (an episode's previous turns, the instructions, the
same prompt of another sample) is copied from the prefix cache instead.
"""

from __future__ import annotations

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
    """A row in its slot of the KV cache."""

    job: Job
    entry: Entry

    @property
    def row(self) -> Row:
        row: Row = self.job.payload.row
        return row

    @property
    def held(self) -> int:
        """Tokens in the slot of an unfinished row: all but the last, which the next step reads."""
        return len(self.row.prompt) + len(self.row.tokens) - 1


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
        self._rows: list[Written] = []  # by slot

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
            while jobs or self._rows:
                self._join(jobs)
                self._write()
                if self._rows and closing():
                    raise RequestError("the engine was closed while this request ran")
                room = self._size - len(self._rows)
                jobs = more(room) if room >= max(1, self._size // JOIN_SHARE) or not self._rows else []
        finally:
            for row in self._rows:
                self._prefix_cache.drop(row.entry)

    def _write(self) -> None:
        """Decode one token of every row; finished rows leave."""
        rows = [written.row for written in self._rows]
        last = torch.tensor([[(row.tokens or row.prompt)[-1]] for row in rows])
        starts = [written.held for written in self._rows]
        logits = self._cache.decode(self._model, starts, last)
        by_row = {written.row: written for written in self._rows}
        advance(rows, logits.float(), lambda row: by_row[row].job.finish(row.completion()))
        for slot in reversed(range(len(rows))):
            if rows[slot].done:
                self._leave(slot, starts[slot] + 1)

    def _leave(self, slot: int, held: int) -> None:
        """Free a row's slot. The last row moves into it, so that the rows fill the first slots."""
        gone = self._rows[slot]
        text = Text(self._owner, (gone.row.prompt + gone.row.tokens)[:held])
        self._prefix_cache.finish(gone.entry, text, self._cache)
        last = self._rows.pop()
        if last is not gone:
            end = len(self._rows)
            self._cache.place(slot, self._cache.held(end, last.held), last.held)
            last.entry.slot = slot
            self._rows[slot] = last

    def _join(self, jobs: Sequence[Job]) -> None:
        """Prefill new requests into the free slots."""
        for number, entry in self._reader.read([job.payload.text for job in jobs], len(self._rows)):
            self._rows.append(Written(jobs[number], entry))
