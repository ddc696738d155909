"""Shards in a bucket: each is committed as a stage is, whoever writes, and whatever becomes of its requests."""

from collections.abc import Callable
from itertools import count

import pytest

from schemas.load import ConfigError
from schemas.manifest import FileEntry, StageKey
from schemas.shards import Shard, ShardManifest
from storage import objects
from storage.committed import Unreachable
from storage.copying import copy_run
from storage.files import sha256_file
from storage.shards import CommittedShard, Shards, read_shard
from storage.store import Store
from storage.verify import survey, verify
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.support.s3_server import Fault, Host, Kind, S3Server

KEY = StageKey(stage="rollout", run="trial", iteration=0)
FIRST = Shard(number=1, count=2)
EACH = "0001-of-0002/manifest.json"


def commit(store: Store, content: str = "rows", shard: Shard = FIRST) -> CommittedShard:
    """Commit a shard of one file."""
    with store.staging("trial") as staged:
        (staged / "items.parquet").write_text(content)
        entry = FileEntry(
            path="items.parquet", bytes=len(content), sha256=sha256_file(staged / "items.parquet")
        )
        manifest = ShardManifest(
            key=KEY, folder="0" * 12, shard=shard, files=[entry], items=1, faults=0, roles={}, tokens=0,
            started_at="2026-01-01T00:00:00+00:00", seconds=1.0, machine=content,
        )  # fmt: skip
        return shards(store).commit(staged, manifest)


def shards(store: Store) -> Shards:
    return Shards(store, KEY, "0" * 12, 2)


@pytest.mark.parametrize("kind", ["lost answer", "500 after it is done", "500", "503", "reset", "slow"])
@pytest.mark.parametrize("file", ["items.parquet", "manifest.json"])
def test_a_put_that_fails_or_whose_answer_is_lost_commits_a_shard_once(
    host: Host, s3: S3Server, kind: Kind, file: str
) -> None:
    fault = Fault(kind, "PUT", file)
    s3.faults.append(fault)
    made = commit(host("first"))
    assert fault.times == 0
    other = host("second")
    found = shards(other).find(FIRST)
    assert found is not None and found.manifest == made.manifest and not [*found.faults(stored=True)]
    assert [str(shard) for shard in shards(other).missing()] == ["2/2"]


def test_of_two_hosts_that_commit_one_shard_the_first_wins_and_the_second_takes_its_rows(
    host: Host, s3: S3Server
) -> None:
    first, second, made = host("first"), host("second"), []

    def second_is_faster(request: str, done: bool) -> None:
        if request.startswith("PUT") and request.endswith(EACH) and not done and not made:
            s3.watch = lambda request, done: None
            made.append(commit(second, "of the second"))

    s3.watch = second_is_faster
    found = commit(first, "of the first")
    assert found.manifest == made[0].manifest and not [*found.faults()]
    assert (found.path / "items.parquet").read_text() == "of the second"


def goes_through(s3: S3Server, step: int, call: Callable[[], object]) -> bool:
    """Whether a call ends well though the server carries out and answers nothing from a half of a request on. By then
    the bucket holds what a client would leave there that was killed."""
    steps = count(1)

    def ends(request: str, done: bool) -> None:
        if next(steps) >= step:
            raise ConnectionResetError

    s3.watch = ends
    try:
        call()
    except (ConfigError, Unreachable):
        return False
    finally:
        s3.watch = lambda request, done: None
    return True


def test_a_commit_that_ends_at_any_request_leaves_no_shard_or_a_whole_one(
    host: Host, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    visible = []
    for step in count(1):
        s3.objects.clear()
        writer = host(f"writer-{step}")
        ended = goes_through(s3, step, lambda writer=writer: commit(writer))
        reader = host(f"reader-{step}")
        found = shards(reader).find(FIRST)
        assert found is None or not [*found.faults(stored=True)]
        visible.append(found is not None)
        if ended:
            break
        again = commit(reader)
        assert not [*again.faults(stored=True)] and verify(reader) == []
    assert len(visible) > 4 and visible == sorted(visible) and visible[-1] and not visible[0]


def test_a_copy_that_ends_at_any_request_leaves_nothing_half_and_is_finished_by_another(
    host: Host, s3: S3Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    commit_rows(store, "evaluation", 0, {"episodes": [episode()]})
    commit(store)
    for step in count(1):
        s3.objects.clear()
        writer = host(f"writer-{step}")
        ended = goes_through(s3, step, lambda writer=writer: copy_run(store, "trial", writer))
        reader = host(f"reader-{step}")
        assert verify(reader) == []
        assert {one.manifest.stage for one in reader.all_current()} <= {"evaluation"}
        if ended:
            break
        copy_run(store, "trial", reader)
        assert {one.manifest.stage for one in reader.all_current()} == {"evaluation"}
        assert verify(reader) == [] and survey(reader).unreferenced == []
        assert shards(reader).find(FIRST) is not None
    assert step > 20


def test_a_copy_has_the_shards_of_unfinished_stages_and_leaves_broken_ones_and_its_own(
    host: Host, s3: S3Server, store: Store
) -> None:
    commit_rows(store, "evaluation", 0, {"episodes": [episode()]})
    made, second = commit(store), Shard(number=2, count=2)
    commit(store, shard=second)
    (shards(store).home / second.name / "items.parquet").write_text("damaged")
    there = host("first")
    assert copy_run(store, "trial", there).folders == 2
    found = shards(host("second")).find(FIRST)
    assert found is not None and found.manifest == made.manifest and not [*found.faults(stored=True)]
    assert shards(there).find(second) is None
    (shards(store).home / second.name / "manifest.json").unlink()
    assert copy_run(store, "trial", there).there == 2
    shards(store).discard(second)
    own = commit(there, "of the copy", second)
    commit(store, "of the run", second)
    assert copy_run(store, "trial", there).there == 3
    assert read_shard(there, own.path).manifest == own.manifest
