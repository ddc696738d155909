"""Iterations over a bucket: the tables of one over files, and a run that moves from files to a bucket and back."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import dump_config
from storage import objects
from storage.copying import copy_run
from storage.store import Store, StoreError
from storage.verify import survey, verify
from tasks.pipeline.iterations import run_stages
from tasks.runtime.stage import StageInterrupted
from tests.support.iterations import Finished, Iterate
from tests.support.s3_server import Fault, Host, S3Server


def digests(store: Store) -> dict[str, str]:
    """The digest of every current table."""
    return {
        f"{c.manifest.stage}@{c.manifest.iteration}.{name}": entry.digest
        for c in store.all_current()
        for name, entry in c.manifest.tables.items()
    }


def test_a_run_that_was_begun_on_files_goes_on_in_a_bucket_from_another_host(
    store: Store, make_config: Callable[..., Config], finished: Finished, iterate: Iterate, host: Host,
    s3: S3Server, tmp_path: Path,
) -> None:  # fmt: skip
    config = make_config()
    finished(store, config)
    first = host("first")
    done = copy_run(store, "trial", first)
    assert (done.folders, done.there) == (8, 0)
    assert copy_run(store, "trial", first).there == 8, "nothing twice"
    other = host("second")
    s3.asked.clear()
    iterate(config, at=other)
    weights = [key.split("/") for key in s3.asked if key.startswith("GET") and key.endswith("safetensors")]
    brought = {(parts[3], parts[4], parts[-2]) for parts in weights}
    ends = ("policy-distillation", "iteration=00000")
    assert brought == {(*ends, "adapter"), (*ends, "target")}, "what iteration 1 starts from, and no other"
    whole = Store(tmp_path / "whole")
    finished(whole, config, 2)
    assert digests(other) == digests(whole)
    assert verify(other) == [] and survey(other).unreferenced == []
    with pytest.raises(StoreError, match="no copy of this one, or has gone on by itself"):
        copy_run(store, "trial", first)
    back = Store(tmp_path / "back")
    copy_run(host("third"), "trial", back)
    assert digests(back) == digests(whole) and verify(back) == []
    logs = [[*one.root.glob("trial/*/iteration=*/*/stage.log")] for one in (back, whole)]
    assert len(logs[0]) == len(logs[1]) > 0


def test_a_stage_that_loses_the_bucket_is_interrupted_and_goes_on(
    make_config: Callable[..., Config], host: Host, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    config, store = make_config(), host("first")
    s3.faults.append(Fault("503", "PUT", "episodes.parquet", times=1000))
    with pytest.raises(StageInterrupted, match=r"s3://.*episodes\.parquet: .*SlowDown"):
        asyncio.run(run_stages(store, config, ["rollout"]))
    assert store.committed("trial", "rollout", 0) is None
    s3.faults.clear()
    assert asyncio.run(run_stages(store, config, ["rollout"])).manifest.tables["episodes"].rows == 4
    assert verify(store) == []


ONE_OF_TWO = """
import asyncio, os, sys
from schemas.load import data_root, load_config
from storage.store import Store, StoreError
from tasks.imports import allow_imports
from tasks.pipeline.iterations import run_iteration
allow_imports(["tests"])
store, config, refused = Store(data_root("s3://bucket/some/place")), load_config(sys.argv[1]), 0
while True:
    try:
        asyncio.run(run_iteration(store, config, 0))
        break
    except StoreError as error:
        assert "another process committed it" in str(error), error
        refused += 1
print(refused)
"""


@pytest.mark.long
def test_two_hosts_that_run_one_iteration_waste_work_and_break_nothing(
    make_config: Callable[..., Config], finished: Finished, host: Host, tmp_path: Path
) -> None:
    config, file, whole = make_config(), tmp_path / "trial.yaml", Store(tmp_path / "whole")
    file.write_text(dump_config(config))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, str(file)], text=True, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ".", "NLAC_MIRROR": str(tmp_path / name)},
        )
        for name in ("first", "second")
    ]  # fmt: skip
    refused = [int(one.communicate(timeout=240)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    finished(whole, config)
    reader = host("reader")
    assert digests(reader) == digests(whole) and verify(reader) == []
    assert sum(refused) <= 8
