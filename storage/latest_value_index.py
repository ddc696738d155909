"""The last value given for each of millions of keys, looked up for millions more: a hash table in arrays."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_EMPTY = np.uint32(0xFFFFFFFF)
_BLOCK = 1 << 15  # keys worked on at once: what is made on the way stays in the processor's cache


class LatestValueIndex:
    """For each key, the value that came last.

    Built and asked in whole arrays, in time and memory linear in their lengths. A table has two slots a key or more;
    a key's slot is taken from its bits. Of the keys that share a slot the one that came last keeps it, and the others
    move, all of their occurrences together, to a further and smaller table that reads other bits.

    Args:
        keys: uint64, evenly distributed (hashes), shape (n,), n below 2^32 - 1.
        values: float64, shape (n,), none of them NaN.
    """

    def __init__(self, keys: np.ndarray, values: np.ndarray) -> None:
        self._tables: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        while len(keys):
            level, bits = len(self._tables), max(4, (2 * len(keys) - 1).bit_length())
            slots = np.full(1 << bits, _EMPTY)
            for block in _blocks(keys):  # of equal slots the last key stays
                numbers = np.arange(block.start, block.stop, dtype=np.uint32)
                slots[_slots(keys[block], bits, level)] = numbers
            self._tables.append((bits, slots, keys, values))
            moved = np.concatenate(_threaded(partial(self._moved, level), keys))
            keys, values = keys[moved], values[moved]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """The last value of each key, NaN where it has none: float64, shape of `keys`."""
        found = np.full(len(keys), np.nan)
        _threaded(lambda block: self._look_up(keys[block], found[block]), keys)
        return found

    def _moved(self, level: int, block: slice) -> np.ndarray:
        """Which keys of a table have lost their slots to another key."""
        bits, slots, keys, _ = self._tables[level]
        asked = keys[block]
        holders = np.take(slots, _slots(asked, bits, level))
        return np.asarray(block.start + np.flatnonzero(np.take(keys, holders) != asked))

    def _look_up(self, keys: np.ndarray, found: np.ndarray) -> None:
        where = np.arange(len(keys))
        for level, (bits, slots, theirs, values) in enumerate(self._tables):
            held = np.take(slots, _slots(keys, bits, level))
            # An empty slot is clipped to the last key, which it can't be: that one's slot is not empty.
            same = np.take(theirs, held, mode="clip") == keys
            found[where] = np.where(same, np.take(values, held, mode="clip"), np.nan)
            other = np.flatnonzero(~same & (held != _EMPTY))
            if not len(other):
                break
            keys, where = keys[other], where[other]


def _blocks(keys: np.ndarray) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, len(keys))) for start in range(0, len(keys), _BLOCK))


def _threaded(work: Callable[[slice], T], keys: np.ndarray) -> list[T]:
    """Work on each block of keys, by a thread a core."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(work, _blocks(keys)))


def _slots(keys: np.ndarray, bits: int, level: int) -> np.ndarray:
    # The high bits of a product with an odd number (Knuth, TAOCP 6.4), another one for each table.
    odd = (0x9E3779B97F4A7C15 + level * 0xC6A4A7935BD1E994) % (1 << 64)
    return ((keys * np.uint64(odd)) >> np.uint64(64 - bits)).astype(np.intp)
