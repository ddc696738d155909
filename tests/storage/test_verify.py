"""What a check of the whole store finds, names and rebuilds."""

import json
import shutil
from pathlib import Path

import pytest

from schemas.manifest import FingerprintInputs
from storage.locks import RunLocked
from storage.store import Committed, Store
from storage.verify import repair, survey, verify
from tasks.engines.protocol import Completion
from tasks.engines.request_journal import RequestJournal
from tests.support.committed import commit_rows
from tests.support.rows import episode, transitions


def computed(store: Store, stage: str, iteration: int, **changes: object) -> Committed:
    """A stage that a model computed; `version` tells its attempts apart."""
    inputs = FingerprintInputs(
        stage=stage, code_version=int(str(changes.get("version", 1))), run="trial", iteration=iteration, config={},
        prompts={}, models={"base": "m"}, inputs=dict(changes.get("inputs", {})),  # type: ignore[call-overload]
    )  # fmt: skip
    played = episode(iteration=iteration, success=changes.get("success", False))
    tables = {"episodes": [played], "transitions": transitions(played)} if stage == "rollout" else {}
    return commit_rows(store, stage, iteration, tables, fingerprint_inputs=inputs)


def reads(made: Committed) -> dict[str, str]:
    """The inputs of a stage that reads a rollout."""
    part = f"rollout@{made.manifest.iteration:05d}"
    return {f"{part}.{name}": entry.digest for name, entry in made.manifest.tables.items()}


def test_an_iteration_that_is_gone_as_a_whole_is_named_by_what_was_made_from_it(store: Store) -> None:
    lost = computed(store, "rollout", 0)
    computed(store, "bellman-targets", 1, inputs=reads(lost))
    assert verify(store) == []
    shutil.rmtree(lost.path.parent)
    shutil.rmtree(store.iteration_dir("trial", 0))
    (fault,) = verify(store)
    assert fault.missing and fault.message.startswith("trial/rollout@00000: gone")


def test_every_broken_file_is_named(store: Store) -> None:
    made = computed(store, "rollout", 0)
    (made.path / "episodes.parquet").unlink()
    (made.path / "transitions.parquet").write_bytes(b"")
    computed(store, "rollout", 0, version=2)
    assert [Path(fault.message.partition(":")[0]).name for fault in verify(store)] == [
        "episodes.parquet", "transitions.parquet",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["manifest.json", "current.json"])
@pytest.mark.parametrize("damage", ["of a figure", "of its last byte"])
def test_damage_that_leaves_a_record_well_formed_is_named(store: Store, name: str, damage: str) -> None:
    made = computed(store, "rollout", 0)
    path = store.current_path("trial", 0) if name == "current.json" else made.path / name
    content = path.read_text()
    digit = content.index(made.manifest.fingerprint) if name == "current.json" else content.index("1.5")
    damaged = content[:-1] if damage == "of its last byte" else f"{content[:digit]}9{content[digit + 1 :]}"
    json.loads(damaged)
    path.write_text(damaged)
    assert [fault.message.partition(":")[0] for fault in verify(store)] == [str(path)]


def test_damaged_lines_of_a_journal_are_counted(store: Store) -> None:
    path = store.run_dir("trial") / ".requests" / "rollout-00000-0123456789ab.journal"
    journal = RequestJournal(path)
    for key in "abc":
        journal.put(key, Completion("said", "stop", 1, 1))
    journal.close()
    assert verify(store) == []
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:-4])
    (fault,) = verify(store)
    assert fault.message.startswith(f"{path}: 2 of 3 lines damaged") and not fault.missing
    assert path.stat().st_size == len(whole) - 4, "a check changes nothing"


def test_what_nothing_refers_to_is_named(store: Store) -> None:
    made = computed(store, "rollout", 0)
    assert survey(store).unreferenced == []
    name = f"rollout-00000-{made.manifest.folder}"
    journal = store.run_dir("trial") / ".requests" / f"{name}.journal"
    for stray in (journal, made.path / "notes.txt", store.root / "notes.txt", store.root / "folder" / "x"):
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("?")
    store.set_current("trial", 0, store.current("trial", 0).model_copy(update={"stages": {}}))
    named = [line.partition(": ")[0] for line in survey(store).unreferenced]
    strays = [store.root / "folder", store.root / "notes.txt", made.path / "notes.txt", journal, made.path]
    assert named == [str(path) for path in strays]
    assert verify(store) == []


@pytest.mark.parametrize("broken", [False, True])
def test_a_lost_current_json_is_rebuilt_of_the_newest_whole_folders(store: Store, broken: bool) -> None:
    older = computed(store, "rollout", 0)
    computed(store, "bellman-targets", 0, inputs=reads(older))
    before = store.current("trial", 0)
    path = store.current_path("trial", 0)
    if broken:
        path.write_text("{")
    else:
        path.unlink()
    assert len(repair(store)) == 1
    assert store.current("trial", 0) == before and verify(store) == []
    assert repair(store) == []


def test_what_was_made_from_another_output_than_the_one_named_is_stale(store: Store) -> None:
    older = computed(store, "rollout", 0)
    computed(store, "bellman-targets", 0, inputs=reads(older))
    newer = computed(store, "rollout", 0, version=2, success=True)
    manifest = newer.manifest.model_copy(update={"started_at": "2026-01-02T00:00:00+00:00"})
    (newer.path / "manifest.json").write_text(manifest.model_dump_json())
    store.current_path("trial", 0).unlink()
    repair(store)
    stages = store.current("trial", 0).stages
    assert stages["rollout"].folder == newer.manifest.folder
    assert [stages[name].stale for name in ("rollout", "bellman-targets")] == [False, True]


def test_an_iteration_before_a_computed_one_is_finished(store: Store) -> None:
    for iteration in range(3):
        computed(store, "rollout", iteration)
    shutil.rmtree(store.run_dir("trial") / "iterations")
    repair(store)
    states = [store.current("trial", iteration).state for iteration in range(3)]
    assert states == ["finished", "finished", "running"]


def test_a_damaged_folder_is_not_named_again(store: Store) -> None:
    made = computed(store, "rollout", 0)
    (made.path / "episodes.parquet").write_bytes(b"")
    store.current_path("trial", 0).unlink()
    assert repair(store) == [] and store.current("trial", 0).stages == {}


def test_a_run_that_is_being_written_is_not_repaired(store: Store) -> None:
    computed(store, "rollout", 0)
    store.current_path("trial", 0).unlink()
    with Store(store.root).lock("trial", "somebody"), pytest.raises(RunLocked, match="somebody"):
        repair(store)
