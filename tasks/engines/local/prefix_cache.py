"""Prefix cache: keys and values of earlier rows, found by their first tokens.

An episode's next prompt continues where its previous one ended. Digests of blocks of tokens find a row that begins
alike; a comparison token by token gives the length of the shared prefix. Rows in progress are found as well as finished
ones. Of the finished rows, the least recently used are dropped first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tasks.engines.local.kv_cache import Held, KVCache

BLOCK = 16  # tokens; a shorter shared prefix is computed anew
KEPT_BYTES = 1 << 30  # of finished rows


@dataclass(eq=False)
class Text:
    """Tokens of one row, and the adapter under which their keys and values were computed.

    Attributes:
        owner: digest of the adapter; '' for none.
        tokens: ids.
    """

    owner: str
    tokens: Sequence[int]

    @cached_property
    def ids(self) -> np.ndarray:
        """The tokens as an array."""
        return np.asarray(self.tokens, dtype=np.int32)

    @cached_property
    def blocks(self) -> list[int]:
        """A digest of each prefix of whole blocks, the shortest first."""
        data = self.ids.tobytes()
        return [hash((self.owner, data[:end])) for end in range(4 * BLOCK, len(data) + 1, 4 * BLOCK)]


class Entry:
    """An earlier row: in a slot of the KV cache while it is in progress, then with its own copy of keys and values."""

    def __init__(self, text: Text, slot: int) -> None:
        self.text = text
        self.slot: int | None = slot
        self.held: Held = []

    @property
    def size(self) -> int:
        """Bytes held outside the KV cache."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.held)


class PrefixCache:
    """All entries, by the digests of their prefixes."""

    def __init__(self) -> None:
        self._by_block: dict[int, dict[Entry, None]] = {}
        self._finished: OrderedDict[Entry, None] = OrderedDict()
        self._size = 0

    def __contains__(self, block: object) -> bool:
        """Whether an entry has the prefix with this digest."""
        return block in self._by_block

    def find(self, text: Text) -> tuple[Entry | None, int]:
        """The entry that shares the longest prefix with a prompt, and that prefix's length in tokens. The prompt's last
        token is never part of it."""
        if not (blocks := shared(text, self)):
            return None, 0
        entry = next(reversed(self._by_block[text.blocks[blocks - 1]]))
        if entry in self._finished:
            self._finished.move_to_end(entry)
        return entry, min(common(entry.text.ids, text.ids), len(text.tokens) - 1)

    def add(self, text: Text, slot: int) -> Entry:
        """Add a row whose tokens are in a slot."""
        entry = Entry(text, slot)
        for block in text.blocks:
            self._by_block.setdefault(block, {})[entry] = None
        return entry

    def finish(self, entry: Entry, text: Text, cache: KVCache) -> None:
        """Copy a row out of its slot; `text` is all that the slot holds of it."""
        assert entry.slot is not None
        for block in text.blocks[len(entry.text.blocks) :]:
            self._by_block.setdefault(block, {})[entry] = None
        entry.text, slot, entry.slot = text, entry.slot, None
        entry.held = [(k.clone(), v.clone()) for k, v in cache.held(slot, len(text.tokens))]
        self._finished[entry] = None
        self._size += entry.size
        while self._size > KEPT_BYTES:
            self.drop(next(iter(self._finished)))

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        if entry in self._finished:
            del self._finished[entry]
            self._size -= entry.size
        for block in entry.text.blocks:
            same = self._by_block[block]
            del same[entry]
            if not same:
                del self._by_block[block]


def shared(text: Text, known: Container[int]) -> int:
    """How many of a text's first blocks are known. Where a prefix is known, the shorter ones are too."""
    return bisect_left(text.blocks, True, key=lambda block: block not in known)


def common(one: np.ndarray, other: np.ndarray) -> int:
    """How many first tokens two texts share."""
    shorter = min(len(one), len(other))
    differ = one[:shorter] != other[:shorter]
    return int(differ.argmax()) if differ.any() else shorter
