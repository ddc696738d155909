"""The latest value of each of millions of keys: a hash table in arrays, filled and read by whole arrays."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_EMPTY = np.uint32(0xFFFFFFFF)
_BLOCK = 1 << 15  # keys per step, so that intermediate arrays stay in the processor's cache


class LatestValueIndex:
    """Maps each key to the value that came last.

    Time and memory are linear in the arrays' lengths. A table has at least two slots per key, and a key's bits choose
    its slot. Of the keys that share a slot, the one that came last keeps it. The others move, with all of their
    occurrences, to another, smaller table, which reads other bits.

    Args:
        keys: uint64, evenly distributed (hashes), shape (n,), n below 2^32 - 1.
        values: float64, shape (n,), none of them NaN.
    """

    def __init__(self, keys: np.ndarray, values: np.ndarray) -> None:
        self._tables: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        while len(keys):
            level, bits = len(self._tables), max(4, (2 * len(keys) - 1).bit_length())
            slots = np.full(1 << bits, _EMPTY)
            for block in _blocks(keys):  # later keys overwrite earlier ones in a slot
                numbers = np.arange(block.start, block.stop, dtype=np.uint32)
                slots[_slots(keys[block], bits, level)] = numbers
            self._tables.append((bits, slots, keys, values))
            moved = np.concatenate(_threaded(partial(self._moved, level), keys))
            keys, values = keys[moved], values[moved]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """The latest value of each key, NaN if it has none: float64, shape of `keys`."""
        found = np.full(len(keys), np.nan)
        _threaded(lambda block: self._look_up(keys[block], found[block]), keys)
        return found

    def _moved(self, level: int, block: slice) -> np.ndarray:
        """The keys of a table that have lost their slots to another key."""
        bits, slots, keys, _ = self._tables[level]
        asked = keys[block]
        holders = np.take(slots, _slots(asked, bits, level))
        return np.asarray(block.start + np.flatnonzero(np.take(keys, holders) != asked))

    def _look_up(self, keys: np.ndarray, found: np.ndarray) -> None:
        where = np.arange(len(keys))
        for level, (bits, slots, theirs, values) in enumerate(self._tables):
            held = np.take(slots, _slots(keys, bits, level))
            # Clipping turns an empty slot into the last key. It never matches that key, whose slot is not empty.
            same = np.take(theirs, held, mode="clip") == keys
            found[where] = np.where(same, np.take(values, held, mode="clip"), np.nan)
            other = np.flatnonzero(~same & (held != _EMPTY))
            if not len(other):
                break
            keys, where = keys[other], where[other]


def _blocks(keys: np.ndarray) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, len(keys))) for start in range(0, len(keys), _BLOCK))


def _threaded(work: Callable[[slice], T], keys: np.ndarray) -> list[T]:
    """Call `work` with each block of keys, on one thread per core."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(work, _blocks(keys)))


def _slots(keys: np.ndarray, bits: int, level: int) -> np.ndarray:
    # Multiplicative hashing (Knuth, TAOCP 6.4): the high bits of a product with an odd number, one per table.
    odd = (0x9E3779B97F4A7C15 + level * 0xC6A4A7935BD1E994) % (1 << 64)
    return ((keys * np.uint64(odd)) >> np.uint64(64 - bits)).astype(np.intp)
