"""Continuous batching: a row that ends makes place for a waiting request at once.

One token of every row is written at a time; between two tokens, newcomers are read into the slots that have become
free. What a newcomer's prompt has in common with any row before it (an episode's earlier turns, the instructions, the
same prompt for another sample) is copied and not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tasks.chat.messages import RequestError
from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import KVCache
from tasks.engines.local.prefill import chunks
from tasks.engines.local.prefix_cache import Entry, PrefixCache, Text, shared
from tasks.engines.local.sampler import Row, advance

JOIN_SHARE = (
    8  # newcomers are read once an eighth of the rows is free: a few together are read faster than one by one
)


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A request's row, and its prompt as what was read before is searched by it. Payload of a job."""

    row: Row
    text: Text


@dataclass(eq=False)
class Newcomer:
    """A request that is to be read.

    Attributes:
        job: its job.
        entry: whose slot or memory holds its beginning.
        known: tokens of it that need not be read.
    """

    job: Job
    entry: Entry | None
    known: int

    @property
    def text(self) -> Text:
        text: Text = self.job.payload.text
        return text

    @property
    def unread(self) -> Sequence[int]:
        """Tokens to be read, but for the last: it is read when the first token is written."""
        return self.text.tokens[self.known : -1]


@dataclass(eq=False)
class Written:
    """A row in its slot."""

    job: Job
    entry: Entry

    @property
    def row(self) -> Row:
        row: Row = self.job.payload.row
        return row

    @property
    def held(self) -> int:
        """Tokens in its slot while it is not done: all but the one that is read next."""
        return len(self.row.prompt) + len(self.row.tokens) - 1


class ContinuousBatch:
    """Rows under one adapter, until none is left.

    Args:
        model: the model under that adapter; `tasks.engines.local.kv_cache.fits` is true of it.
        owner: digest of the adapter, '' for none.
        prefixes: what was read before.
        size: rows at once.
        pad_id: fills the shorter of rows that are read together.
    """

    def __init__(
        self, model: torch.nn.Module, owner: str, prefixes: PrefixCache, size: int, pad_id: int
    ) -> None:
        self._model, self._owner, self._prefixes = model, owner, prefixes
        self._size, self._pad_id = size, pad_id
        self._cache = KVCache(model, size)
        self._rows: list[Written] = []  # by slot

    def run(self, jobs: list[Job], more: Callable[[int], list[Job]], closing: Callable[[], bool]) -> None:
        """Write until nobody is left.

        Args:
            jobs: the first requests; payloads are `GenerationRequest`.
            more: takes waiting requests like them, at most as many as it is asked for.
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
                self._prefixes.drop(row.entry)

    def _write(self) -> None:
        """One token of every row; those that end leave."""
        rows = [written.row for written in self._rows]
        last = torch.tensor([[(row.tokens or row.prompt)[-1]] for row in rows])
        starts = [written.held for written in self._rows]
        logits = self._cache.write(self._model, starts, last)
        by_row = {written.row: written for written in self._rows}
        advance(rows, logits.float(), lambda row: by_row[row].job.finish(row.completion()))
        for slot in reversed(range(len(rows))):
            if rows[slot].done:
                self._leave(slot, starts[slot] + 1)

    def _leave(self, slot: int, held: int) -> None:
        """Take a row out; the last one moves into its slot."""
        gone = self._rows[slot]
        text = Text(self._owner, (gone.row.prompt + gone.row.tokens)[:held])
        self._prefixes.finish(gone.entry, text, self._cache)
        last = self._rows.pop()
        if last is not gone:
            end = len(self._rows)
            self._cache.place(slot, self._cache.held(end, last.held), last.held)
            last.entry.slot = slot
            self._rows[slot] = last

    def _join(self, jobs: Sequence[Job]) -> None:
        """Read newcomers into the free slots, a few at a time."""
        waiting = list(jobs)
        while waiting:
            now, waiting = self._apart(waiting)
            now.sort(key=lambda newcomer: len(newcomer.unread))
            for chunk in chunks([len(newcomer.unread) for newcomer in now]):
                self._read([now[index] for index in chunk])

    def _apart(self, waiting: Sequence[Job]) -> tuple[list[Newcomer], list[Job]]:
        """Those that are read now, and those that wait because they share more with one of them than with anything
        known."""
        now: list[Newcomer] = []
        later: list[Job] = []
        soon: set[int] = set()
        for job in waiting:
            text = job.payload.text
            if shared(text, soon) > shared(text, self._prefixes):
                later.append(job)
            else:
                now.append(Newcomer(job, *self._prefixes.find(text)))
                soon.update(text.blocks)
        return now, later

    def _read(self, newcomers: Sequence[Newcomer]) -> None:
        """Newcomers together: what is known is copied, the rest is read."""
        slots = range(len(self._rows), len(self._rows) + len(newcomers))
        for slot, newcomer in zip(slots, newcomers, strict=True):
            if newcomer.entry is not None and newcomer.known:
                entry = newcomer.entry
                held = entry.held if entry.slot is None else self._cache.held(entry.slot, newcomer.known)
                self._cache.place(slot, held, newcomer.known)
        width = max(len(newcomer.unread) for newcomer in newcomers)
        if width:
            ids = [[*n.unread, *[self._pad_id] * (width - len(n.unread))] for n in newcomers]
            self._cache.read(self._model, slots, [n.known for n in newcomers], torch.tensor(ids))
        for slot, newcomer in zip(slots, newcomers, strict=True):
            entry = self._prefixes.add(Text(self._owner, newcomer.text.tokens[:-1]), slot)
            self._rows.append(Written(newcomer.job, entry))
