"""What a store no longer needs, and what it keeps."""

from pathlib import Path

import pytest

from schemas.manifest import StageKey
from storage.garbage import garbage, remove_garbage, remove_run
from storage.locks import RunLocked
from storage.store import Committed, Store, StoreError
from tests.support.committed import commit_rows
from tests.support.rows import episode, transitions


def rollout(store: Store, attempt: int, *, success: bool = False) -> Committed:
    row = episode(success=success)
    return commit_rows(
        store, "rollout", 0, {"episodes": [row], "transitions": transitions(row)}, attempt=attempt
    )


def test_a_superseded_attempt_goes_and_the_current_one_stays(store: Store) -> None:
    old, new = rollout(store, 1), rollout(store, 2, success=True)
    [found] = garbage(store)
    assert (found.kind, found.path, found.run) == ("superseded attempt", old.path, "trial")
    assert found.bytes == sum(path.stat().st_size for path in old.path.iterdir())
    assert old.path.exists(), "nothing is removed yet"
    assert remove_garbage(store) == [found]
    assert not old.path.exists() and new.path.exists() and garbage(store) == []
    assert store.committed("trial", "rollout", 0) == new
    assert not list((store.run_dir("trial") / ".staging").iterdir())


def test_what_a_current_stage_was_computed_from_stays_though_it_was_replaced(store: Store) -> None:
    old = rollout(store, 1)
    read = {"rollout@00000.transitions": old.manifest.tables["episodes"].digest}
    commit_rows(store, "bellman-targets", 0, {}, inputs=read)
    rollout(store, 2, success=True)
    assert garbage(store) == []


def test_an_equal_recomputation_takes_the_place_of_what_was_read(store: Store) -> None:
    old = rollout(store, 1)
    commit_rows(store, "bellman-targets", 0, {}, inputs={"i": old.manifest.tables["episodes"].digest})
    rollout(store, 2)
    assert [found.path for found in garbage(store)] == [old.path]


def test_a_champion_stays(store: Store, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "weights").write_text("w")
    old = commit_rows(store, "policy-distillation", 0, {}, adapters={"policy": tmp_path / "policy"})
    commit_rows(store, "policy-distillation", 0, {}, attempt=2)
    assert garbage(store, [old.path / "policy"]) == []
    assert [found.path for found in garbage(store)] == [old.path]


def test_journals_and_checkpoints_of_unfinished_stages_stay(store: Store) -> None:
    done = rollout(store, 1)
    key = StageKey(stage="rollout", run="trial", iteration=0)
    finished = store.requests_journal(key, done.manifest.folder)
    going_on = store.requests_journal(key.model_copy(update={"iteration": 1}), "0123456789ab")
    checkpoint = store.checkpoint(
        key.model_copy(update={"stage": "critic-sft", "iteration": 1}), "0123456789ab"
    )
    for path in (finished, going_on, checkpoint):
        path.parent.mkdir(exist_ok=True)
        path.write_text("12345")
    assert [(found.kind, found.path, found.bytes) for found in garbage(store)] == [("journal", finished, 5)]
    current = store.current("trial", 1).model_copy(update={"state": "finished"})
    store.set_current("trial", 1, current)
    assert {found.path for found in remove_garbage(store)} == {finished, going_on, checkpoint}


def test_nothing_goes_while_a_manifest_is_broken_or_a_run_is_written(store: Store) -> None:
    old, new = rollout(store, 1), rollout(store, 2, success=True)
    with store.lock("trial", "a test"), pytest.raises(RunLocked):
        remove_garbage(Store(store.root))
    (new.path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="Nothing is removed while it is unknown"):
        remove_garbage(store)
    assert old.path.exists()


def test_a_run_is_removed_whole(store: Store) -> None:
    rollout(store, 1)
    row = episode(run="other")
    commit_rows(store, "rollout", 0, {"episodes": [row]}, run="other")
    remove_run(store, "trial")
    assert store.runs() == ["other"]
    assert [path.name for path in store.root.iterdir()] == ["other"]
