"""Functions that verify badly, for the process that has to survive them."""

import os
import sys
import time


def half(answer: str) -> float:
    """A well-behaved one; it prints, which must not disturb anything."""
    sys.stdout.write("{not an answer}\n")
    return 0.5 * len(answer)


def spins(answer: str) -> float:
    """Never ends."""
    while True:
        pass


def deep(answer: str) -> float:
    """Never comes back from C code."""
    return float(len(str(7 ** (7**9))))


def sleeps(answer: str) -> float:
    """Uses no CPU time."""
    time.sleep(600)
    return 1.0


def ends(answer: str) -> float:
    """Takes the process with it."""
    os._exit(3)


def grows(answer: str) -> float:
    """Wants more memory than there is."""
    return float(len(bytearray(1 << 40)))


def order() -> list[str]:
    """Words as a set gives them out, which hangs on how they hash."""
    return list({f"word {number}" for number in range(50)})
