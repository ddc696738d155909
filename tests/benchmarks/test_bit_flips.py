"""A slice of the damaged files: each is named by verify, and refused by a stage that reads it."""

from pathlib import Path

import pytest

from benchmarks.reliability.bit_flips import DAMAGES, KINDS, DamagedRun, try_damages


@pytest.mark.slow
def test_damaged_files_are_named_and_refused(tmp_path: Path) -> None:
    found = try_damages(DamagedRun(tmp_path, iterations=1), 25)
    assert found.missed == []
    assert found.made.total() == 25 and set(found.made) == {
        f"{kind}, {how}" for kind in KINDS for how in DAMAGES
    }
    assert found.refused.total() >= 12, "most of what is damaged is read by a stage"
