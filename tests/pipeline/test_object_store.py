"""Iterations over a bucket: the tables of one over files, and a run that moves from files to a bucket and back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from storage.copying import copy_run
from storage.store import Store, StoreError
from storage.verify import survey, verify
from tests.support.iterations import Finished, Iterate
from tests.support.s3_server import Host, S3Server


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
    Path("/tmp/s23store/asked").write_text("\n".join(s3.asked))
    whole = Store(tmp_path / "whole")
    finished(whole, config, 2)
    assert digests(other) == digests(whole)
    assert verify(other) == [] and survey(other).unreferenced == []
    with pytest.raises(StoreError, match="no copy of this one, or has gone on by itself"):
        copy_run(store, "trial", first)
    back = Store(tmp_path / "back")
    copy_run(host("third"), "trial", back)
    assert digests(back) == digests(whole) and verify(back) == []
