"""Prioritised replay against hand-computed numbers (Schaul et al. 2016)."""

import numpy as np
import polars as pl
import pytest

from storage.latest_value_index import LatestValueIndex
from storage.replay import (
    _choice,
    draw_replay,
    importance_weights,
    latest_priorities,
    priority_probabilities,
    replay_use,
)


def transitions(rows: list[tuple[str, str, str]]) -> pl.LazyFrame:
    """(id, split, status) rows."""
    return pl.LazyFrame(
        [{"transition_id": i, "split": s, "status": t, "iteration": 0, "step": 0} for i, s, t in rows]
    )


def priorities(rows: list[tuple[str, int, float, str]]) -> pl.LazyFrame:
    """(id, iteration, priority, kind) rows."""
    names = ("transition_id", "iteration", "priority", "priority_kind")
    return pl.LazyFrame([{**dict(zip(names, row, strict=True)), "status": "ok"} for row in rows])


FOUR = transitions([(i, "train", "ok") for i in "abcd"])


def test_probabilities_by_hand() -> None:
    # (0 + 1)^.5 = 1, (3 + 1)^.5 = 2, (8 + 1)^.5 = 3
    found = priority_probabilities(np.array([0.0, 3.0, 8.0]), alpha=0.5, epsilon=1.0)
    assert found.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_weights_by_hand() -> None:
    # N P = 4 * [.5, .125] = [2, .5]; ^-1 = [.5, 2]; over the maximum 2
    assert importance_weights(np.array([0.5, 0.125]), 4, beta=1.0).tolist() == pytest.approx([0.25, 1.0])
    assert importance_weights(np.array([0.5, 0.125]), 4, beta=0.0).tolist() == [1.0, 1.0]


def test_alpha_zero_is_uniform() -> None:
    assert priority_probabilities(np.array([0.0, 1e6]), alpha=0.0, epsilon=0.01).tolist() == [0.5, 0.5]


def test_an_unscored_transition_gets_the_largest_priority_known() -> None:
    scored = priorities([("a", 0, 1.0, "kl_bound"), ("b", 0, 3.0, "kl_bound")])
    draw = draw_replay(FOUR, scored, count=400, alpha=1.0, beta=1.0, epsilon=0.5, seed=1)
    by_id = dict(zip(draw.ids, zip(draw.priority, draw.scored, draw.probability, strict=True), strict=True))
    total = 1.5 + 3.5 * 3  # b, c and d at 3
    assert by_id["a"] == (1.0, True, pytest.approx(1.5 / total))
    assert by_id["b"] == (3.0, True, pytest.approx(3.5 / total))
    assert by_id["c"] == by_id["d"] == (3.0, False, pytest.approx(3.5 / total))
    # rarest drawn most heavily weighted: w = (N P)^-1 / max
    weights = dict(zip(draw.ids, draw.weight, strict=True))
    assert weights["a"] == pytest.approx(1.0)
    assert weights["b"] == pytest.approx(1.5 / 3.5)


def test_rows_are_those_of_numpys_own_choice() -> None:
    p = priority_probabilities(np.random.default_rng(1).random(10_001) ** 4, alpha=0.6, epsilon=0.01)
    expected = np.random.default_rng(7).choice(len(p), size=500, replace=True, p=p)
    np.testing.assert_array_equal(_choice(p, np.empty(len(p)), 500, 7), expected)


def test_frequencies_follow_the_probabilities() -> None:
    scored = priorities([(i, 0, p, "nll") for i, p in zip("abcd", (0.0, 1.0, 2.0, 4.0), strict=True)])
    draw = draw_replay(FOUR, scored, count=40_000, alpha=1.0, beta=0.4, epsilon=1.0, seed=0)
    expected = np.array([1, 2, 3, 5]) / 11
    counts = np.array([draw.ids.count(i) for i in "abcd"]) / 40_000
    # four standard deviations of a binomial share
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected * (1 - expected) / 40_000))


def test_held_out_and_failed_rows_are_never_drawn() -> None:
    held_out = [("planted", "eval", "ok"), ("held back", "validation", "ok")]
    rows = transitions([("a", "train", "ok"), *held_out, ("broken", "train", "engine_error")])
    draw = draw_replay(rows, None, count=200, alpha=0.6, beta=0.4, epsilon=0.01, seed=3)
    assert set(draw.ids) == {"a"}
    assert draw.candidates == 1


def test_the_newest_score_counts_and_kinds_do_not_mix() -> None:
    rows = priorities(
        [
            ("a", 0, 9.0, "kl_bound"),
            ("a", 2, 1.0, "kl_bound"),
            ("b", 0, 50.0, "nll"),
            ("c", 1, 2.0, "kl_bound"),
        ]
    )
    for order in (rows, rows.reverse()):
        kind, newest = latest_priorities(order)
        found = newest.of(pl.Series(["a", "b", "c", "d"]).hash().to_numpy()).tolist()
        assert kind == "kl_bound"
        assert found == [1.0, pytest.approx(np.nan, nan_ok=True), 2.0, pytest.approx(np.nan, nan_ok=True)]


def test_a_target_that_always_fails_is_drawn_less_each_time_and_never_not_at_all() -> None:
    """a's target fails whenever it is drawn; the others keep the priority 4."""
    rows, shares = [(i, 0, 4.0, "kl_bound") for i in "bcd"], []
    for iteration in range(1, 12):
        draw = draw_replay(
            FOUR, priorities(rows), count=2000, alpha=1.0, beta=0.4, epsilon=0.05, seed=iteration
        )
        shares.append(draw.ids.count("a") / 2000)
        drawn_with = dict(zip(draw.ids, draw.priority, strict=True))["a"]
        rows.append(("a", iteration, drawn_with / 2, "kl_bound"))
        failed = priorities(rows).with_columns(status=pl.lit("target_failed"))
        assert latest_priorities(failed)[1].of(pl.Series(["a"]).hash().to_numpy()).tolist() == [
            drawn_with / 2
        ]
    assert shares[0] == pytest.approx(1 / 4, abs=0.04) and shares[-1] == pytest.approx(0.05 / 12, abs=0.006)
    assert shares[-1] > 0


def test_the_last_value_of_a_key_counts_also_where_keys_share_a_slot() -> None:
    # keys 0..9999 are no hashes: many share a slot, so further tables are needed
    keys = np.tile(np.arange(10_000, dtype=np.uint64), 3)
    last = LatestValueIndex(keys, np.arange(30_000, dtype=float))
    found = last.of(np.array([0, 9_999, 10_000, 7], np.uint64)).tolist()
    assert found == [20_000.0, 29_999.0, pytest.approx(np.nan, nan_ok=True), 20_007.0]
    every = last.of(keys[:10_000])
    assert np.array_equal(every, np.arange(20_000, 30_000))


def test_no_keys_have_no_values() -> None:
    assert np.isnan(
        LatestValueIndex(np.empty(0, np.uint64), np.empty(0)).of(np.arange(3, dtype=np.uint64))
    ).all()


def test_the_use_of_replay_is_counted_over_what_can_be_drawn() -> None:
    rows = transitions(
        [*((i, "train", "ok") for i in "abcd"), ("e", "eval", "ok"), ("f", "train", "engine_error")]
    )
    drawn = pl.LazyFrame({"transition_id": ["a", "a", "a", "b", "b", "c", "gone"]})
    assert replay_use(rows, drawn) == (6 / 4, 1 / 4)


def test_an_empty_replay_says_so() -> None:
    with pytest.raises(ValueError, match="replay is empty"):
        draw_replay(transitions([("x", "eval", "ok")]), None, count=1, alpha=1, beta=1, epsilon=1, seed=0)


def test_the_same_seed_draws_the_same() -> None:
    first, again, other = (
        draw_replay(FOUR, None, count=20, alpha=0.6, beta=0.4, epsilon=0.01, seed=s).ids for s in (5, 5, 6)
    )
    assert first == again != other
