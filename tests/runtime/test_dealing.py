"""Dealing items out by their estimated cost, and results of items as tables."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.rows import Episode, Transition
from schemas.shards import Shard
from tasks.roles.episode import EpisodeResult
from tasks.runtime.dealing import deal
from tasks.runtime.item_tables import ItemTables
from tests.support.rows import episode, transitions


@given(st.lists(st.integers(0, 1000).map(float), max_size=60), st.integers(1, 9))
def test_every_item_is_dealt_once_and_no_shard_costs_more_than_the_rule_allows(
    costs: list[float], count: int
) -> None:
    hands = deal(costs, count)
    assert sorted(item for hand in hands for item in hand) == list(range(len(costs)))
    assert all(hand == sorted(hand) for hand in hands) and hands == deal(costs, count)
    loads = [sum(costs[item] for item in hand) for hand in hands]
    assert max(loads) <= sum(costs) / count + max(costs, default=0.0) * (1 - 1 / count) + 1e-6


def test_the_costly_items_are_spread_and_equal_ones_dealt_in_turn() -> None:
    assert deal([9.0, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0], 2) == [[0, 2, 5, 7], [1, 3, 4, 6]]
    assert deal([1.0] * 7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert deal([], 2) == [[], []]


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", "1/3/3"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        Shard.parse(text)


def test_results_come_back_from_their_tables_as_they_were(tmp_path: Path) -> None:
    long, none = episode(number=1), episode(number=2, status="environment_error", steps=0)
    results = {
        4: EpisodeResult(long, transitions(long)),
        2: EpisodeResult(none, []),
        7: EpisodeResult(episode(number=3), transitions(episode(number=3))),
    }
    tables = ItemTables(EpisodeResult)
    tables.write(tmp_path, results)
    assert tables.read(tmp_path) == results
    assert list(tables.rows(results)) == ["episodes", "transitions"]
    single = ItemTables(Transition)
    rows = dict(enumerate(transitions(long)))
    single.write(tmp_path, rows)
    assert single.read(tmp_path) == rows
    single.write(tmp_path, {})
    assert single.read(tmp_path) == {}


@dataclass
class WithText:
    """Not rows alone."""

    episode: Episode
    words: list[str] = field(default_factory=list)


def test_a_result_that_is_not_rows_alone_is_refused() -> None:
    with pytest.raises(TypeError, match=r"WithText\.words"):
        ItemTables(WithText)
