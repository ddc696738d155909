"""Which episodes a page holds, where it can't hold them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb

FIRST = 128  # episodes read before the size of one is known
TOO_LARGE = 10
"""An episode that does not fit any more ends the choice, unless it alone takes a tenth of the room: it is skipped."""

RULE = (
    "equally many of each run, iteration and split; of these, first the ones with a critiqued step, then by a hash of "
    "the task, so that the same tasks stand under every iteration"
)
"""How episodes are chosen, for people."""

RANKED = """
with critiqued as (
    select distinct episode_id from transitions where transition_id in (select transition_id from critiques)
), ranked as (
    select episode_id, run, iteration, split, row_number() over (
        partition by run, iteration, split
        order by episode_id not in (select episode_id from critiqued), md5(environment || '/' || task_id), episode_id
    ) as rank
    from episodes where run in (select unnest($1))
)
select episode_id from ranked order by rank, run, iteration, split
"""


@dataclass(frozen=True)
class Sample:
    """Episodes as JSON texts, and how many there are in all."""

    episodes: list[str]
    total: int


def sample(
    database: duckdb.DuckDBPyConnection,
    runs: Sequence[str],
    room: int,
    read: Callable[[list[str]], list[str]],
) -> Sample:
    """The episodes that fit, by RULE.

    Args:
        database: from `storage.sql.views.connect`.
        runs: names of runs.
        room: bytes that the texts may take.
        read: the JSON texts of the given episodes, in their order.
    """
    ids = [row[0] for row in database.execute(RANKED, [list(runs)]).fetchall()]
    taken: list[str] = []
    left, at, size = room, 0, FIRST
    while at < len(ids):
        texts = read(ids[at : at + size])
        at += len(texts)
        for text in texts:
            bytes_ = len(text.encode()) + 1
            if bytes_ <= left:
                taken.append(text)
                left -= bytes_
            elif bytes_ < room // TOO_LARGE:
                return Sample(taken, len(ids))
        size = max(FIRST, left * len(taken) // max(1, room - left))
    return Sample(taken, len(ids))
