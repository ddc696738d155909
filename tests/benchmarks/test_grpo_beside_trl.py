"""GRPO beside TRL's trainer: both sides play the same task, and our seeds are held to the range of TRL's."""

from pathlib import Path

import pytest

from benchmarks.learning.grpo_beside_trl import among_theirs, ours, reward, summarise, theirs


def test_a_cell_of_the_same_row_pays() -> None:
    said = [reward("r2c2", answer) for answer in ("r2c0", " r2c3", "r0c2", "left", "")]
    assert said == [1, 1, 0, 0, 0]


def test_the_median_of_our_seeds_has_to_lie_among_those_of_trl() -> None:
    def seeds(*values: float) -> list[dict[str, float]]:
        return [{"whole": value, "end": value} for value in values]

    assert all(c.ok for c in among_theirs({"nlac": seeds(0.1, 0.5, 0.9), "trl": seeds(0.4, 0.6)}))
    low = {c.name for c in among_theirs({"nlac": seeds(0.3, 0.3, 0.9), "trl": seeds(0.4, 0.6)}) if not c.ok}
    high = {c.name for c in among_theirs({"nlac": seeds(0.7), "trl": seeds(0.4, 0.6)}) if not c.ok}
    assert low == {"whole_above_trl_lowest", "end_above_trl_lowest"}
    assert high == {"whole_below_trl_highest", "end_below_trl_highest"}


@pytest.mark.slow
def test_both_sides_play_the_task(tmp_path: Path) -> None:
    pytest.importorskip(
        "trl", reason="TRL is not installed: pip install -c constraints.txt -e '.[benchmarks]'"
    )
    for paid in (ours(0, 2, tmp_path), theirs(0, 2, tmp_path)):
        assert len(paid) == 2 and all(0 <= share < 0.5 and (32 * share).is_integer() for share in paid)
        assert summarise(paid)["whole"] == sum(paid) / 2
