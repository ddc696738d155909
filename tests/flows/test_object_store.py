"""`nlac iterate` with the data root in a bucket: the stack lives in the mirror, workers commit to the bucket."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, dump_config
from storage.store import Store
from tasks.imports import ALLOW_IMPORT
from tests.pipeline.test_object_store import digests
from tests.support.iterations import Finished
from tests.support.s3_server import SECRET, URL, Host, S3Server

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_iterate_commits_to_a_bucket_what_it_commits_to_files(
    host: Host, s3: S3Server, make_config: Callable[..., Config], finished: Finished, tmp_path: Path
) -> None:
    config = make_config(algorithm="rft")
    file, seen = tmp_path / "trial.yaml", host("first")
    file.write_text(dump_config(config))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "NLAC_DATA"},
        "HOME": str(tmp_path / "home"), "PYTHONPATH": str(PROJECT_ROOT), ALLOW_IMPORT: "tests",
    }  # fmt: skip
    for words in (["iterate", "--config", str(file)], ["verify"], ["status", "--format", "json"]):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *words, "--data", URL], cwd=PROJECT_ROOT, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
    assert json.loads(done.stdout)
    whole = Store(tmp_path / "whole")
    finished(whole, config)
    assert digests(host("second")) == digests(whole)
    assert not [key for key, one in s3.objects.items() if SECRET.encode() in one.content]
    held = [path for path in seen.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert held == []
