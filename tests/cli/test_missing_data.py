"""What is gone from a data root is named; `nlac verify --repair` rebuilds what the manifests allow."""

import shutil
from pathlib import Path

import pytest

from storage.store import Store
from tests.support.cli import nlac
from tests.support.committed import commit_episode

COUNT = "select count(*) as n from episodes"


def damaged(store: Store, what: str) -> Path:
    """Take something away from a store of one rollout, and say which file lacks."""
    folder = commit_episode(store)
    current = store.current_path("trial", 0)
    if what == "current.json":
        current.unlink()
        return current
    if what == "iterations":
        shutil.rmtree(current.parent.parent)
        return current
    if what == "root":
        shutil.rmtree(store.root)
        return store.root
    if what == "stage":
        shutil.rmtree(folder.parent.parent)
        return folder / "manifest.json"
    file = folder / ("manifest.json" if what == "manifest" else "episodes.parquet")
    if what == "truncated":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        file.unlink()
    return file


@pytest.mark.parametrize(
    "what", ["current.json", "iterations", "root", "stage", "manifest", "truncated", "removed"]
)
def test_what_is_gone_is_named_and_ends_sql_and_verify_with_3(store: Store, what: str) -> None:
    gone = damaged(store, what)
    asked = nlac(store, "sql", COUNT, "--format", "csv")
    assert (asked.exit_code, asked.stdout) == (3, "")
    assert str(gone) in asked.stderr and "--allow-missing" in asked.stderr
    allowed = nlac(store, "sql", COUNT, "--format", "csv", "--allow-missing")
    assert (allowed.exit_code, allowed.stdout) == (0, "n\n0\n")
    assert str(gone) in allowed.stderr
    checked = nlac(store, "verify")
    assert checked.exit_code == 3 and str(gone) in checked.stderr
    assert "all files are" not in checked.stdout
    allowed = nlac(store, "verify", "--allow-missing")
    assert allowed.exit_code == 0 and str(gone) in allowed.stderr


@pytest.mark.parametrize("what", ["root", "current.json", "removed"])
@pytest.mark.parametrize(
    "words",
    [
        ("show", "--failed"),
        ("show", "trial/00000/train/00000"),
        ("runs", "list"),
        ("runs", "compare", "trial", "trial"),
        ("report", "--run", "trial"),
    ],
)
def test_what_is_gone_ends_every_list_with_3_until_it_may_be_missing(
    store: Store, words: tuple[str, ...], what: str
) -> None:
    gone = damaged(store, what)
    asked = nlac(store, *words)
    assert (asked.exit_code, asked.stdout) == (3, "")
    assert f"left out: {gone}" in asked.stderr
    allowed = nlac(store, *words, "--allow-missing")
    assert allowed.exit_code in (0, 2), "what is left may be too little for an answer"
    assert f"left out: {gone}" in allowed.stderr


def test_verify_counts_and_finds_a_changed_byte_whatever_may_be_missing(store: Store) -> None:
    file = commit_episode(store) / "transitions.parquet"
    whole = nlac(store, "verify")
    assert whole.exit_code == 0
    assert "1 run, 1 iteration, 1 stage and 0 superseded, 2 files, " in whole.stdout
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = nlac(store, "verify", "--allow-missing")
    assert result.exit_code == 3
    assert str(file) in result.stderr


def test_verify_repair_rebuilds_what_the_manifests_allow(store: Store) -> None:
    gone = damaged(store, "iterations")
    repaired = nlac(store, "verify", "--repair")
    assert repaired.exit_code == 0 and f"{gone}: rebuilt" in repaired.stdout
    assert nlac(store, "sql", COUNT, "--format", "csv").stdout == "n\n1\n"
