"""Which kill comes when, by seed, in terms of the run's own progress."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

AT_ONCE = 0.2
"""Probability that a kill comes before the one before it is recovered from."""


@dataclass(frozen=True)
class Planned:
    """A kill to come.

    Attributes:
        number: from 0.
        victim: kind of the process.
        commits: stages that must have been committed since the kill before.
        wait: what must have passed since then, of the time between two commits; only time in which there is a victim.
    """

    number: int
    victim: str
    commits: int
    wait: float


def planned(seed: str, number: int, victims: Sequence[str], at_once: float = AT_ONCE) -> Planned:
    """The kill of a number.

    Kinds take turns in an order that is drawn anew for each turn, so each is killed equally often.

    Args:
        seed: of the run.
        number: of the kill, from 0.
        victims: the kinds that the run has.
        at_once: probability that it does not wait for a commit.
    """
    turn, place = divmod(number, len(victims))
    order = list(victims)
    Random(f"{seed} turn {turn}").shuffle(order)
    chance = Random(f"{seed} kill {number}")
    commits = 0 if chance.random() < at_once else 1
    return Planned(number, order[place], commits, chance.random())
