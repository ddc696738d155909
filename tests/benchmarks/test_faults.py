"""A slice of the faults, and the table that is made of them."""

from pathlib import Path

import pytest

from benchmarks.reliability import disk_faults, faults, http_faults, process_faults
from benchmarks.reliability.faults import FAULTS, make, table


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "cut body"])
def test_a_stage_survives_a_server_that_breaks(fault: str, tmp_path: Path) -> None:
    found = http_faults.break_http(tmp_path, fault)
    assert found["passing"]["requests more"] >= 2


@pytest.mark.slow
def test_a_full_disk_costs_no_committed_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_faults, "LEFT", (0,))
    try:
        found = disk_faults.fill_disk(tmp_path, algorithm="react")
    except disk_faults.NoMount as reason:
        pytest.skip(str(reason))
    assert set(found["by stage"]) == {"evaluation"}


@pytest.mark.slow
def test_two_iterations_of_a_run_at_once_are_one(tmp_path: Path) -> None:
    found = process_faults.two_iterations(
        tmp_path, algorithm="react", evaluation={"episodes": 60, "baseline": False}
    )
    assert found["said"].startswith("run 'trial' is being written by ")


def test_the_table_shows_what_was_survived_and_says_what_was_not() -> None:
    survived = {"survived": True, "machine": "m", "commit": "c", "date": "d", "found": {"said": "x"}}
    written = table(
        {"read_only": survived, "disk_full": {"survived": False, "found": {"skipped": "no root"}}}
    )
    rows = [line for line in written.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(FAULTS)
    shown = [row for row in rows if "**not shown:**" not in row]
    assert len(shown) == 1 and "`nlac iterate` ends with one message" in shown[0]
    assert "**not shown:** no root" in written and "was not made" in written


def test_a_fault_that_is_not_survived_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_survived(folder: Path) -> dict[str, object]:
        raise AssertionError(f"lost everything in {folder.name[:10]}")

    monkeypatch.setitem(faults.FAULTS, "clock", faults.Fault(not_survived, "", "", "", ""))
    made = make("clock")
    assert not made["survived"] and made["found"]["failed"] == "AssertionError: lost everything in nlac-fault"
