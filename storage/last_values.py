"""The last value given for each of millions of keys, looked up for millions more: a hash table in arrays."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_EMPTY = np.uint32(0xFFFFFFFF)
_BLOCK = 1 << 15  # keys looked up at once: what is made on the way stays in the processor's cache


class LastValues:
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
            bits = max(4, (2 * len(keys) - 1).bit_length())
            at = _slots(keys, bits, len(self._tables))
            slots = np.full(1 << bits, _EMPTY)
            slots[at] = np.arange(len(keys), dtype=np.uint32)  # of equal indices the last one stays
            self._tables.append((bits, slots, keys, values))
            moved = np.flatnonzero(np.take(keys, np.take(slots, at)) != keys)
            keys, values = keys[moved], values[moved]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """The last value of each key, NaN where it has none: float64, shape of `keys`."""
        found = np.full(len(keys), np.nan)
        blocks = (slice(start, start + _BLOCK) for start in range(0, len(keys), _BLOCK))
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda block: self._look_up(keys[block], found[block]), blocks))
        return found

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


def _slots(keys: np.ndarray, bits: int, level: int) -> np.ndarray:
    # The high bits of a product with an odd number (Knuth, TAOCP 6.4), another one for each table.
    odd = (0x9E3779B97F4A7C15 + level * 0xC6A4A7935BD1E994) % (1 << 64)
    return ((keys * np.uint64(odd)) >> np.uint64(64 - bits)).astype(np.intp)
