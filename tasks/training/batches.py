"""Which rows make up an optimizer step, and which of a step's rows are computed together. Imports no torch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import cycle, groupby, islice
from math import ceil
from random import Random

from tasks.training.data import Encoded


@dataclass(frozen=True)
class MixedIn:
    """Rows that take a share of every batch beside the stage's own: their numbers, the share, and the field of the
    configuration that sets it."""

    rows: Sequence[int] = ()
    share: float = 0.0
    field: str = "mix"

    def per_batch(self, batch_rows: int) -> int:
        """How many of them a batch has."""
        return min(round(batch_rows * self.share), len(self.rows))


def plan_batches(
    own: Sequence[int], batch_rows: int, epochs: int, seed: int, *mixed: MixedIn
) -> list[list[int]]:
    """Assign rows to optimizer steps.

    Own rows are spread evenly: batch sizes differ by at most one, because the mean loss of a small last batch would be
    mostly noise. Rows mixed in are taken in turn from one random order, so their uses differ by at most one and none
    is twice in a batch.

    Args:
        own: numbers of the stage's own rows; each is in exactly one batch per epoch.
        batch_rows: rows per batch, all together.
        epochs: passes over `own`.
        seed: determines the plan.
        mixed: what is mixed in, the other role's rows first.

    Returns:
        one list of row numbers per optimizer step.

    Raises:
        ValueError: the shares leave no place for the stage's own rows.
    """
    own_most = batch_rows - sum(origin.per_batch(batch_rows) for origin in mixed)
    if own_most < 1:
        shares = " and ".join(f"{origin.field} {origin.share:g}" for origin in mixed)
        raise ValueError(
            f"{shares} of batch_rows {batch_rows} leave no own row in a batch; lower "
            f"{' or '.join(origin.field for origin in mixed)}"
        )
    random = Random(seed)
    turns: list[tuple[Iterator[int], int]] = []
    for origin in mixed:
        # A stream of its own for each further origin, so that none changes the order of the rows before it.
        stream = Random(f"{origin.field.removesuffix('_share')} {seed}") if turns else random
        turns.append((cycle(stream.sample(origin.rows, len(origin.rows))), origin.per_batch(batch_rows)))
    steps = ceil(len(own) / own_most)
    plan = []
    for _ in range(epochs):
        order = random.sample(own, len(own))
        for step in range(steps):
            some = order[step * len(order) // steps : (step + 1) * len(order) // steps]
            plan.append([*some, *(row for rows, each in turns for row in islice(rows, each))])
    return plan


def micro_batches(rows: Sequence[Encoded], size: int) -> list[list[Encoded]]:
    """Split rows into micro-batches of `size`, longest first.

    Rows of one role stay together, because their prompts begin alike. Micro-batches get about equally many tokens,
    because those computed in parallel wait for the slowest.
    """
    parts: list[list[Encoded]] = [[] for _ in range(0, len(rows), size)]
    tokens, begin = [0] * len(parts), 0
    for _, same in groupby(sorted(rows, key=lambda row: row.role), key=lambda row: row.role):
        of_role = sorted(same, key=lambda row: row.tokens, reverse=True)
        room = Counter(place // size for place in range(begin, begin + len(of_role)))
        least = [(tokens[number], number) for number in room]
        heapify(least)
        for row in of_role:
            _, number = heappop(least)
            parts[number].append(row)
            tokens[number] += row.tokens
            room[number] -= 1
            if room[number]:
                heappush(least, (tokens[number], number))
        begin += len(of_role)
    return [parts[number] for number in sorted(range(len(parts)), key=tokens.__getitem__, reverse=True)]
