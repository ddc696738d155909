"""The artifact store: all of a stage or nothing, whatever happens; damage is named; one writer a run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from socket import gethostname

import psutil
import pytest

from schemas.manifest import CurrentEntry, StageKey
from schemas.rows import Priority
from storage import locks
from storage.locks import RunLocked, StageBusy
from storage.sql.views import connect
from storage.store import Store, StoreError, read_manifest
from storage.verify import verify
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.support.waiting import wait_until

WRITER = """
import sys, time
from pathlib import Path
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.storage.test_store import rows
store = Store(Path(sys.argv[1]))
print("begun", flush=True)
for number in range(10_000):
    commit_rows(store, "critic-sft", 0, {"priorities": rows(2000)}, inputs={"n": str(number)})
"""


def test_a_new_data_root_is_its_user_s_alone_and_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    for root in (tmp_path / "deep" / "data", shared):
        with Store(root).lock("trial", "a test"):
            pass
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "deep" / "data", shared)]
    assert modes == [0o700, 0o755]


KEY = StageKey(stage="critic-sft", run="trial", iteration=0)


def rows(count: int) -> list[Priority]:
    return [
        Priority(
            run="trial", iteration=0, transition_id=f"t{n}", priority=1.0, priority_kind="nll", critic_logprob=-1.0,
            description_tokens=2,
        )
        for n in range(count)
    ]  # fmt: skip


def test_what_was_committed_is_current_and_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)
    committed = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    found = store.committed("trial", "critic-sft", 0)
    assert found == committed
    found.check(content=True)
    assert found.scan("priorities").collect().height == 3
    assert found.manifest.tables["priorities"].rows == 3
    assert verify(store) == []
    assert not list((tmp_path / "trial" / ".staging").iterdir())


def test_new_folders_are_flushed_up_to_the_data_root_and_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[Path] = set()
    flush = os.fsync

    def noting(handle: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{handle}").readlink())
        flush(handle)

    monkeypatch.setattr(os, "fsync", noting)
    root = tmp_path / "somewhere" / "data"
    with Store(root).lock("trial", "this test"):
        commit_rows(Store(root), "critic-sft", 0, {"priorities": rows(3)})
    made = [path for path in (tmp_path / "somewhere").rglob("*") if path.is_dir()]
    assert {path.name for path in made} >= {
        "data",
        "trial",
        "critic-sft",
        "iteration=00000",
        "iterations",
        "00000",
    }
    missed = {path for path in (*made, tmp_path / "somewhere") if path.parent not in flushed}
    assert not missed, "a power cut would lose the names of these"


def test_one_process_at_a_time_computes_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ORPHAN_SECONDS", 0.0)
    script = (
        "import sys; from pathlib import Path; from storage.store import Store\n"
        "from tests.storage.test_store import KEY\n"
        "with Store(Path(sys.argv[1])).computing(KEY): print('holds it', flush=True); sys.stdin.read()"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert orphan.stdout is not None and orphan.stdout.readline() == b"holds it\n"
    store = Store(tmp_path)
    with (
        pytest.raises(StageBusy, match=r"computes critic-sft of iteration 0 .* or end it"),
        store.computing(KEY),
    ):
        pass
    with store.computing(KEY.model_copy(update={"iteration": 1})):
        pass
    orphan.kill()
    orphan.communicate()
    with store.computing(KEY):
        pass


def test_a_committed_folder_is_never_overwritten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    with pytest.raises(StoreError, match="never overwritten"):
        commit_rows(store, "critic-sft", 0, {"priorities": rows(4)})
    assert store.committed("trial", "critic-sft", 0).scan("priorities").collect().height == 3
    fingerprint = store.current("trial", 0).stages["critic-sft"].fingerprint
    assert store.next_attempt(KEY, fingerprint) == 2


def test_of_two_that_commit_a_folder_at_the_same_instant_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    made = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    seen = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **options: path != made.path and seen(path, **options))
    with pytest.raises(StoreError, match="another process committed it"):
        commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    assert store.committed("trial", "critic-sft", 0) == made


def test_a_folder_not_yet_named_current_is_found_and_adopted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    again = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)}, attempt=2)
    (store.iteration_dir("trial", 0) / "current.json").unlink()  # the process died between rename and naming
    assert store.committed("trial", "critic-sft", 0) is None
    found = store.find(KEY, again.manifest.fingerprint)
    assert found is not None and found.manifest.attempt == 2, "the newest attempt"
    store.adopt(found)
    assert store.committed("trial", "critic-sft", 0) == found


def test_a_manifest_of_version_1_still_reads(tmp_path: Path) -> None:
    made = commit_rows(Store(tmp_path), "critic-sft", 0, {"priorities": rows(3)})
    path = made.path / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    content |= {"manifest_version": 1, "determinants": content.pop("fingerprint_inputs")}
    path.write_text(json.dumps(content))
    found = Store(tmp_path).committed("trial", "critic-sft", 0)
    assert found is not None
    assert found.manifest.fingerprint_inputs == made.manifest.fingerprint_inputs
    assert connect(Store(tmp_path)).sql("select count(*) from priorities").fetchall() == [(3,)]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.11, 0.23])
def test_sigkill_at_any_instant_leaves_nothing_half_written(tmp_path: Path, delay: float) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
    time.sleep(delay)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    store = Store(tmp_path)
    assert verify(store) == []
    for manifest in tmp_path.glob("trial/critic-sft/*/*/manifest.json"):
        assert read_manifest(manifest.parent).tables["priorities"].rows == 2000
    with store.lock("trial", "the next run"):
        assert not list((tmp_path / "trial" / ".staging").glob("*"))


def test_a_sweep_removes_what_ended_processes_left_and_nothing_else(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as unreaped:
        assert unreaped.stdout is not None and unreaped.stdout.read() == b""
        wait_until(
            lambda: psutil.Process(unreaped.pid).status() == psutil.STATUS_ZOMBIE, 30, "its end", every=0
        )
        here = gethostname()
        stay = {f"{os.getpid()}-abc-{here}", f"{os.getppid()}-abc-{here}", f"{gone.pid}-abc-not.{here}"}
        staging = tmp_path / "trial" / ".staging"
        for name in {f"{gone.pid}-abc-{here}", f"{unreaped.pid}-abc-{here}", *stay}:
            (staging / name).mkdir(parents=True)
        Store(tmp_path).sweep("trial")
        assert {path.name for path in staging.iterdir()} == stay


def test_a_stage_that_is_tried_again_removes_what_its_killed_process_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    leaves_its_folder = (
        "import os, sys\nfrom pathlib import Path\nfrom storage.store import Store\n"
        "with Store(Path(sys.argv[1])).staging('trial'): os.kill(os.getpid(), 9)"
    )
    with store.lock("trial", "run-1 (nlac/iteration)"):
        subprocess.run(
            [sys.executable, "-c", leaves_its_folder, str(tmp_path)], env={**os.environ, "PYTHONPATH": "."}
        )
        assert len(list(tmp_path.glob("trial/.staging/*"))) == 1
        with store.lock("trial", "run-2 (nlac/rollout)", within="run-1"), store.staging("trial") as folder:
            assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.slow
def test_a_killed_writer_was_really_writing(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
    half_written = "trial/.staging/*/*.parquet"
    wait_until(lambda: list(tmp_path.glob(half_written)), 30, "a table", every=0, process=writer)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert list(tmp_path.glob("trial/.staging/*"))  # half-written, and not visible
    assert verify(Store(tmp_path)) == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_to_a_file_is_reported_by_name(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    committed = commit_rows(store, "critic-sft", 0, {"priorities": rows(300)})
    path = committed.path / "priorities.parquet"
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-7])
    elif damage == "flip":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    else:
        path.unlink()
    (fault,) = verify(store)
    assert str(path) in fault.message and "force=true" in fault.message
    assert fault.missing is (damage != "flip")
    if damage != "flip":
        with pytest.raises(StoreError, match=r"priorities\.parquet"):
            committed.check(content=False)


def test_a_broken_manifest_is_reported_by_name_and_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    committed = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    (committed.path / "manifest.json").write_text('{"fingerprint": "')
    with pytest.raises(StoreError, match=r"manifest\.json: broken manifest"):
        store.committed("trial", "critic-sft", 0)
    assert len(verify(store)) == 1


def test_a_second_writer_is_refused_by_name_and_a_child_is_let_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock("trial", "run-1 (nlac/iteration)"):
        with (
            pytest.raises(RunLocked, match=r"run-1 \(nlac/iteration\)"),
            store.lock("trial", "run-2 (nlac/rollout)"),
        ):
            pass
        with store.lock("trial", "run-3 (nlac/rollout)", within="run-1"):
            assert store.lock_holder("trial").startswith("run-1")
        with store.lock("another", "run-4"):
            pass
    with store.lock("trial", "run-5"):
        assert json.loads((tmp_path / "trial" / ".lock.json").read_text())["holder"] == "run-5"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path; from storage.store import Store\n"
        "with Store(Path(sys.argv[1])).lock('trial', 'doomed'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with Store(tmp_path).lock("trial", "next"):
        pass


def test_two_who_change_what_is_current_undo_nothing_of_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def name(stage: str) -> None:
        entry = {stage: CurrentEntry(fingerprint=stage, folder=stage)}
        store.change_current("trial", 0, lambda c: c.model_copy(update={"stages": c.stages | entry}))

    stages = [f"stage-{number}" for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(name, stages))
    assert set(store.current("trial", 0).stages) == set(stages)


def test_of_two_writers_of_one_folder_one_is_refused_and_the_folder_is_current(tmp_path: Path) -> None:
    store, rounds = Store(tmp_path), 40
    together = threading.Barrier(2, timeout=60)

    def writes(_: int) -> int:
        won = 0
        for number in range(rounds):
            together.wait()
            with suppress(StoreError):
                commit_rows(store, "rollout", number, {"episodes": [episode()]})
                won += 1
        return won

    with ThreadPoolExecutor(2) as writers:
        assert sum(writers.map(writes, range(2))) == rounds
    assert [n for n in range(rounds) if store.committed("trial", "rollout", n) is None] == []
