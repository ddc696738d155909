"""Dealing out a stage's items to shards, and what a run of a shard, or of their merging, does with them."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.shards import Shard


class ShardDone(Exception):
    """A shard's items are worked on. It ends the stage's function there: the rest needs the items of all shards.

    Args:
        results: by the item's number.
    """

    def __init__(self, results: Mapping[int, Any]) -> None:
        super().__init__(f"{len(results)} items")
        self.results = results


@dataclass(frozen=True)
class Merging:
    """The results of all shards, by the item's number."""

    results: Mapping[int, Any]


Sharding = Shard | Merging | None
"""What a stage's run is: one shard, the merging of all, or the whole stage."""


def deal(costs: Sequence[float], count: int) -> list[list[int]]:
    """The items of each shard, ascending: the costliest item first, each to the shard with the least so far (Graham
    1969). So the costliest shard costs at most 4/3 of what it costs in the best split, and every host deals alike.

    Args:
        costs: of each item.
        count: of shards.
    """
    hands: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, shard) for shard in range(count)]
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        load, shard = loads[0]
        hands[shard].append(item)
        heapq.heapreplace(loads, (load + costs[item], shard))
    return [sorted(hand) for hand in hands]
