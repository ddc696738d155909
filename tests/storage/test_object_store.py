"""Committed data in a bucket: all of a stage or nothing, whoever writes, is killed, or breaks requests."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from schemas.manifest import CurrentEntry, FingerprintInputs
from storage import objects
from storage.files import sha256_file
from storage.garbage import garbage, remove_garbage, remove_run
from storage.mirror import ABANDONED
from storage.objects import Objects
from storage.sql.views import connect
from storage.store import StoreError
from storage.verify import repair, survey, verify
from tasks.pipeline.fingerprint_inputs import fingerprint_of
from tests.storage.test_store import KEY, rows
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.support.s3_server import URL, Fault, Host, Kind, S3Server, Stored

FINGERPRINT = fingerprint_of(
    FingerprintInputs(
        stage="critic-sft",
        code_version=1,
        run="trial",
        iteration=0,
        config={},
        prompts={},
        models={},
        inputs={},
    )
)


def test_what_one_host_committed_another_one_reads(host: Host, s3: S3Server) -> None:
    made = commit_rows(host("first"), "critic-sft", 0, {"priorities": rows(3)})
    other = host("second")
    found = other.committed("trial", "critic-sft", 0)
    assert found is not None and found.manifest == made.manifest
    assert found.path.is_relative_to(other.root) and not (found.path / "priorities.parquet").exists()
    assert found.scan("priorities").collect().height == 3
    assert (other.runs(), other.iterations("trial")) == (["trial"], [0])
    assert connect(other).sql("select count(*), any_value(run) from priorities").fetchall() == [(3, "trial")]
    assert str(other) == URL and verify(other) == [] and survey(other).unreferenced == []
    digest = made.manifest.files[0].sha256[:16]
    folder = f"some/place/trial/critic-sft/iteration=00000/{made.manifest.folder}"
    assert {key for key in s3.objects if "critic-sft" in key} == {
        f"{folder}/manifest.json", f"{folder}/{digest}/priorities.parquet"
    }  # fmt: skip


def test_a_commit_takes_four_small_requests_and_one_for_each_file(host: Host, s3: S3Server) -> None:
    store = host("first")
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    s3.asked.clear()
    commit_rows(store, "critic-sft", 0, {"priorities": rows(3), "episodes": [episode()]})
    assert s3.methods() == {"GET": 2, "PUT": 4}
    s3.asked.clear()
    assert store.committed("trial", "critic-sft", 0) is not None
    assert s3.methods() == {"GET": 1}, "a manifest does not change"


FAULTS: tuple[Kind, ...] = ("lost answer", "500 after it is done", "500", "503", "reset")


@pytest.mark.parametrize("file", ["priorities.parquet", "manifest.json", "current.json"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_put_that_fails_or_whose_answer_is_lost_commits_once(
    host: Host, s3: S3Server, kind: Kind, file: str
) -> None:
    store = host("first")
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    fault = Fault(kind, "PUT", file)
    s3.faults.append(fault)
    made = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    assert fault.times == 0
    found = host("second").committed("trial", "critic-sft", 0)
    assert found is not None and found.manifest == made.manifest
    assert set(store.current("trial", 0).stages) == {"rollout", "critic-sft"}
    assert verify(store) == [] and survey(store).unreferenced == []


def test_a_slow_server_is_waited_for(host: Host, s3: S3Server) -> None:
    s3.faults.append(Fault("slow", "PUT", "manifest.json"))
    commit_rows(host("first"), "critic-sft", 0, {"priorities": rows(3)})
    s3.faults.append(Fault("slow", "GET", "priorities.parquet"))
    assert verify(host("second")) == []


def test_a_server_that_stays_broken_fails_the_commit_which_then_goes_on(
    host: Host, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 1)
    store = host("first")
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    s3.faults.append(Fault("503", "PUT", "manifest.json", times=1000))
    with pytest.raises(
        StoreError, match=r"s3://bucket/some/place/trial/critic-sft/.*SlowDown.*run the command again"
    ):
        commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    assert store.committed("trial", "critic-sft", 0) is None
    assert store.next_attempt(KEY, "whatever") == 1
    assert verify(store) == []
    assert len(survey(store).unreferenced) == 1, "what was uploaded"
    s3.faults.clear()
    commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    assert verify(store) == [] and survey(store).unreferenced == []


def test_another_s_answer_is_not_taken_for_a_lost_one(host: Host, s3: S3Server) -> None:
    """The put fails with an unknown outcome, and another writer's object is there by then."""
    bucket = Objects(URL)
    s3.objects["some/place/key"] = Stored(b"another's", datetime.now(UTC))
    s3.faults.append(Fault("lost answer", "PUT", "key"))
    assert not bucket.put("key", b"ours", replaces=None)
    assert s3.objects["some/place/key"].content == b"another's"


def test_two_who_change_what_is_current_undo_nothing_of_each_other(host: Host) -> None:
    stores = [host(name) for name in ("first", "second", "third", "fourth")]

    def name(number: int) -> None:
        entry = {f"stage-{number}": CurrentEntry(fingerprint="f", folder="f")}
        stores[number % 4].change_current(
            "trial", 0, lambda c: c.model_copy(update={"stages": c.stages | entry})
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(name, range(20)))
    assert set(stores[0].current("trial", 0).stages) == {f"stage-{number}" for number in range(20)}


def test_of_two_hosts_that_commit_one_folder_one_is_refused_by_name(host: Host, s3: S3Server) -> None:
    """The second uploads other bytes under the same name before the first one's manifest is put."""
    first, second = host("first"), host("second")
    made = []

    def second_is_faster(request: str, done: bool) -> None:
        if request.startswith("PUT") and request.endswith("manifest.json") and not done and not made:
            s3.watch = lambda request, done: None
            made.append(commit_rows(second, "critic-sft", 0, {"priorities": rows(4)}))

    s3.watch = second_is_faster
    with pytest.raises(
        StoreError, match=r"s3://.*/critic-sft/.*another process committed it.*never overwritten"
    ):
        commit_rows(first, "critic-sft", 0, {"priorities": rows(3)})
    found = first.committed("trial", "critic-sft", 0)
    assert found is not None and found.manifest == made[0].manifest
    assert found.scan("priorities").collect().height == 4
    assert verify(first) == []


TWO_HOSTS = """
import os, sys
from contextlib import suppress
from schemas.load import data_root
from storage.store import Store, StoreError
from tests.storage.test_store import rows
from tests.support.committed import commit_rows
for name, size in (("first", 3), ("second", 4)):
    if os.fork() == 0:
        os.environ["NLAC_MIRROR"] = f"{sys.argv[1]}/{name}"
        store = Store(data_root("s3://bucket/some/place"))
        for iteration in range(8):
            with suppress(StoreError):
                commit_rows(store, "critic-sft", iteration, {"priorities": rows(size)})
                os.write(1, b"won\\n")
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_of_two_processes_with_mirrors_of_their_own_each_folder_has_one_writer(
    host: Host, s3: S3Server, tmp_path: Path
) -> None:
    both = subprocess.run(
        [sys.executable, "-c", TWO_HOSTS, str(tmp_path)], env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert both.stdout.count("won") == 8
    store = host("reader")
    assert [store.committed("trial", "critic-sft", n) is not None for n in range(8)] == [True] * 8
    assert verify(store) == []


def test_damage_to_an_object_is_reported_by_name(host: Host, s3: S3Server) -> None:
    store = host("first")
    made = commit_rows(store, "critic-sft", 0, {"priorities": rows(300)})
    (key,) = (key for key in s3.objects if key.endswith(".parquet"))
    whole = s3.objects[key].content
    for damaged in (whole[:-7], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        s3.objects[key] = Stored(damaged, datetime.now(UTC))
        (fault,) = verify(store)
        assert f"s3://bucket/{key}" in fault.message and "force=true" in fault.message
        assert fault.missing is (len(damaged) < len(whole))
        with pytest.raises(StoreError, match=r"priorities\.parquet"):
            host("second").at(host("second").root / made.path.relative_to(store.root)).check(content=True)
    del s3.objects[key]
    (fault,) = verify(store)
    assert fault.missing and f"s3://bucket/{key}: named in the manifest and missing" in fault.message
    with pytest.raises(StoreError, match="missing"):
        made.check(content=False)
    problems: list[str] = []
    connect(host("third"), problems)
    assert len(problems) == 1 and f"s3://bucket/{key}: missing" in problems[0]


def test_a_damaged_copy_is_brought_again(host: Host) -> None:
    store = host("first")
    made = commit_rows(store, "critic-sft", 0, {"priorities": rows(300)})
    copy = made.path / "priorities.parquet"
    whole = copy.read_bytes()
    copy.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    made.check(content=True)
    assert copy.read_bytes() == whole


def test_a_run_that_was_deleted_and_made_again_is_not_read_from_old_copies(host: Host) -> None:
    first, second = host("first"), host("second")
    commit_rows(first, "critic-sft", 0, {"priorities": rows(3)})
    connect(second)
    remove_run(first, "trial")
    assert first.runs() == [] and second.runs() == []
    commit_rows(first, "critic-sft", 0, {"priorities": rows(5)})
    again = host("second")
    assert connect(again).sql("select count(*) from priorities").fetchall() == [(5,)]
    found = again.committed("trial", "critic-sft", 0)
    assert found is not None and found.scan("priorities").collect().height == 5


def test_a_lost_current_is_rebuilt_from_the_manifests(host: Host, s3: S3Server) -> None:
    store = host("first")
    made = commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    del s3.objects["some/place/trial/iterations/00000/current.json"]
    (fault,) = verify(host("second"))
    assert fault.missing and f"{URL}/trial/iterations/00000/current.json: gone" in fault.message
    (said,) = repair(host("second"))
    assert "rebuilt from the manifests of critic-sft" in said
    found = store.committed("trial", "critic-sft", 0)
    assert found is not None and found.manifest == made.manifest and verify(store) == []


def test_garbage_goes_from_the_bucket_and_a_young_upload_stays(host: Host, s3: S3Server) -> None:
    store = host("first")
    commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
    kept = commit_rows(store, "critic-sft", 0, {"priorities": rows(4)}, attempt=2)
    litter = "some/place/trial/critic-sft/iteration=00000/ffff/0123456789abcdef/priorities.parquet"
    s3.objects[litter] = Stored(b"of a killed writer", datetime.now(UTC))
    assert [found.kind for found in garbage(store)] == ["superseded attempt"]
    s3.objects[litter] = Stored(b"of a killed writer", datetime.now(UTC) - 2 * ABANDONED)
    assert [found.kind for found in garbage(store)] == ["superseded attempt", "abandoned upload"]
    remove_garbage(host("second"))
    assert {key.split("/")[-3 if "parquet" in key else -2] for key in s3.objects if "critic-sft" in key} == {
        kept.manifest.folder
    }
    assert garbage(store) == [] and verify(store) == []


def test_listings_come_in_pages(host: Host, s3: S3Server) -> None:
    s3.page = 2
    store = host("first")
    for iteration in range(3):
        commit_rows(store, "critic-sft", iteration, {"priorities": rows(3)})
    assert connect(host("second")).sql("select count(*) from priorities").fetchall() == [(9,)]
    assert store.iterations("trial") == [0, 1, 2]


def test_a_large_file_goes_up_in_parts_and_comes_back(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART", 5 << 20)
    large = tmp_path / "adapter.safetensors"
    large.write_bytes(os.urandom(11 << 20))
    s3.faults.append(Fault("503", "PUT", "safetensors"))
    bucket = Objects(URL)
    bucket.upload("adapter.safetensors", large)
    assert bucket.digest("adapter.safetensors") == (11 << 20, sha256_file(large))
    assert len(s3.uploads) == 0 and s3.methods()["POST"] == 2


WRITERS = """
import os, sys
from schemas.load import data_root
from storage.store import Store
from tasks.pipeline.fingerprint_inputs import fingerprint_of
from tests.storage.test_store import rows
from tests.support.committed import commit_rows
for mirror in sys.stdin:
    child = os.fork()  # everything is imported, so it begins at once
    if child == 0:
        os.environ["NLAC_MIRROR"] = mirror.strip()
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        commit_rows(Store(data_root("s3://bucket/some/place")), "critic-sft", 0, {"priorities": rows(3)})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_sigkill_before_and_after_any_request_leaves_nothing_or_all(
    host: Host, s3: S3Server, tmp_path: Path
) -> None:
    writers = subprocess.Popen(
        [sys.executable, "-c", WRITERS], env={**os.environ, "PYTHONPATH": "."}, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert writers.stdin is not None and writers.stdout is not None
    whole, visible = 0, []
    for step in count(1):
        s3.objects.clear()
        writers.stdin.write(f"{tmp_path / f'host-{step}'}\n")
        pid, seen = int(writers.stdout.readline()), Steps(step)

        def kills(request: str, done: bool, pid: int = pid, seen: Steps = seen) -> None:
            if seen.is_the_step():
                os.kill(pid, signal.SIGKILL)
                if not done:
                    raise ConnectionResetError

        s3.watch = kills
        writers.stdin.write("go\n")
        ended = int(writers.stdout.readline())
        s3.watch = lambda request, done: None
        store = host(f"reader-{step}")
        assert verify(store) == []
        found = store.committed("trial", "critic-sft", 0)
        assert found is None or found.scan("priorities").collect().height == 3
        visible.append(found is not None)
        if ended == 0:
            whole = step
            break
        assert ended == -signal.SIGKILL
        folder = store.find(KEY, FINGERPRINT)
        if folder is None:
            commit_rows(store, "critic-sft", 0, {"priorities": rows(3)})
        else:
            store.adopt(folder)
        assert verify(store) == [] and survey(store).unreferenced == []
        assert store.committed("trial", "critic-sft", 0) is not None
    writers.stdin.close()
    assert writers.wait(30) == 0
    assert whole > 14 and visible == sorted(visible) and visible[:2] == [False, False] and visible[-1]


class Steps:
    """Counts the halves of requests, from several threads, up to the one to kill at."""

    def __init__(self, step: int) -> None:
        self._numbers, self._step = count(1), step

    def is_the_step(self) -> bool:
        return next(self._numbers) == self._step


def test_a_body_that_is_cut_is_read_again(host: Host, s3: S3Server) -> None:
    commit_rows(host("first"), "critic-sft", 0, {"priorities": rows(3000)})
    s3.faults += [
        Fault("cut body", "GET", name) for name in ("priorities.parquet", "manifest.json", "current.json")
    ]
    other = host("second")
    found = other.committed("trial", "critic-sft", 0)
    assert found is not None
    found.check(content=True)
    assert found.scan("priorities").collect().height == 3000
    s3.faults.append(Fault("cut body", "GET", "priorities.parquet"))
    assert verify(other) == [] and all(fault.times == 0 for fault in s3.faults)
