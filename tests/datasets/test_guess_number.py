"""What demonstrations from random play of GuessTheNumber say is true."""

import random
import re

import polars as pl
import pytest

from tasks.datasets.guess_number import ROLES, Guess, Span, demonstrations, improved


@pytest.fixture(scope="module")
def told() -> pl.DataFrame:
    return demonstrations(12, seed=0)


def possible(turns: list[dict[str, str]], observation: str) -> list[int]:
    """The numbers that the hints of a state leave, found by trying all."""
    seen = [*(turn["observation"] for turn in turns[1:]), observation] if turns else []
    guesses = [int(re.search(r"\[(\d+)\]", turn["answer"])[1]) for turn in turns]  # type: ignore[index]
    hints = list(zip(guesses, seen, strict=True))
    return [n for n in range(1, 21) if all((n > g) == ("higher" in hint) and n != g for g, hint in hints)]


def test_what_demonstrations_say_of_random_play_is_true(told: pl.DataFrame) -> None:
    assert told["role"].value_counts().rows() != [] and set(told["role"]) == set(ROLES)
    assert set(told.group_by("role").len()["len"]) == {12}
    for row in told.iter_rows(named=True):
        left = possible(row["turns"], row["observation"])
        span = f"{left[0]} to {left[-1]}"
        if row["role"] in ("policy", "refine"):
            assert row["thought"] == f"It can be {span}. I guess {row['answer'][1:-1]}."
        if row["role"] == "refine":
            assert int(row["answer"][1:-1]) in left
            assert not any(tried["optimal"] for tried in row["attempts"])
        if row["role"] in ("predict", "bootstrap"):
            guess = int(re.search(r"\[(\d+)\]", row["action_text"])[1])  # type: ignore[index]
            assert ("not possible" in row["thought"]) == (guess not in left)
        if row["role"] == "evaluate":
            guess = int(re.search(r"\[(\d+)\]", row["action_text"])[1])  # type: ignore[index]
            worst = {n: max(sum(m < n for m in left), sum(m > n for m in left)) for n in left}
            assert row["optimal"] == (guess in left and worst[guess] == min(worst.values()))


def test_a_backup_tells_one_guess_more_than_the_forecast_it_was_given(told: pl.DataFrame) -> None:
    backups = told.filter(pl.col("role") == "bootstrap", pl.col("next_future").is_not_null())
    assert backups.height
    for later, now, seen in backups.select("next_future", "answer", "next_observation").iter_rows():
        assert ("higher" if "higher" in seen else "lower") in now
        more = re.search(r"found after (\d+) more", now)
        after = re.search(r"found after (\d+) more", later)
        if more:
            assert (int(after[1]) if after else 0) == int(more[1]) - 1
        else:
            assert "failure" in later and "failure" in now


def test_critiques_by_hand() -> None:
    def judged(number: int) -> tuple[bool, str]:
        return Guess((), "", Span(5, 11), number, "", None, False, 0).judgement

    assert judged(8) == (True, "8 is possible and leaves 3 at most.")
    assert judged(5) == (False, "5 may leave 6 numbers. Guess nearer the middle of 5 to 11.")
    assert judged(12) == (False, "12 was ruled out by the hints. Guess from 5 to 11.")


def test_random_play_is_random(told: pl.DataFrame) -> None:
    ruled_out = [
        int(row["answer"][1:-1]) not in possible(row["turns"], row["observation"])
        for row in demonstrations(60, seed=1).filter(role="policy").iter_rows(named=True)
    ]
    assert 10 < sum(ruled_out) < 60, "many guesses are such as no sensible player makes"


def test_advice_is_taken_without_being_optimal_play() -> None:
    ruled_out = Guess((), "", Span(5, 11), 12, "", None, False, 0)
    lopsided = Guess((), "", Span(5, 11), 5, "", None, False, 0)
    drawn = [random.Random(n) for n in range(40)]
    assert {improved(ruled_out, stream) for stream in drawn} == set(range(5, 12))
    assert {improved(lopsided, stream) for stream in drawn} == {6, 7, 8, 9, 10}
