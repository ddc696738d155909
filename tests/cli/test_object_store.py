"""Commands over a bucket, as a user calls them, and what is said of a URL that can't be used."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.doctor import bucket
from flows.cli.main import app
from schemas.config import Config
from schemas.load import dump_config
from storage import objects
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.rows import episode
from tests.support.s3_server import URL, Fault, Host, S3Server


def nlac(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def test_a_run_is_copied_queried_verified_and_deleted(
    store: Store, host: Host, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set_config("trial", 0, dump_config(Config(run="trial")))
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    host("here")
    copied = nlac("runs", "copy", "trial", "--data", str(store.root), "--to", URL)
    assert copied.exit_code == 0, copied.stderr
    assert f"1 stage folders with 1 files, 0.01 MB, are copied to {URL}; 0 were there" in copied.stdout
    host("elsewhere")
    monkeypatch.setenv("NLAC_DATA", URL)
    counted = nlac("sql", "select count(*) as episodes from episodes", "--format", "json")
    assert json.loads(counted.stdout) == [{"episodes": 1}]
    listed = nlac("runs", "list", "--format", "json")
    assert [row["run"] for row in json.loads(listed.stdout)] == ["trial"]
    whole = nlac("verify")
    assert whole.exit_code == 0 and f"{URL}: 1 run, 1 iteration, 1 stage" in whole.stdout
    (key,) = (key for key in s3.objects if key.endswith("episodes.parquet"))
    kept = s3.objects.pop(key)
    lost = nlac("verify")
    assert lost.exit_code == 3 and f"s3://bucket/{key}: named in the manifest and missing" in lost.stderr
    assert nlac("sql", "select 1").exit_code == 0, "its copy is here"
    host("third")
    assert nlac("sql", "select 1").exit_code == 3
    s3.objects[key] = kept
    del s3.objects["some/place/trial/iterations/00000/current.json"]
    repaired = nlac("verify", "--repair")
    assert (
        repaired.exit_code == 0 and f"{URL}/trial/iterations/00000/current.json: rebuilt" in repaired.stdout
    )
    asked = nlac("runs", "delete", "trial")
    assert f"{URL}/trial and run 'trial' in MLflow would be deleted" in asked.stdout
    assert nlac("runs", "delete", "trial", "--yes").exit_code == 0
    assert [key for key in s3.objects if "trial" in key] == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "gs://bucket/x",
            "data root gs://...: a data root is a folder, file:///FOLDER or s3://BUCKET/PREFIX",
        ),
        ("s3://", "not the name of a bucket"),
        ("s3://UPPER/x", "not the name of a bucket"),
        ("s3://bucket/../other", "not the name of a bucket and a prefix"),
        ("s3://key:hidden@bucket/x", "credentials and endpoint come from the environment"),
        ("s3://bucket/x?region=hidden", "and nothing else"),
        ("file://elsewhere/x", "file:///FOLDER"),
        ("s3://no-such-bucket/x", "no such bucket; make it, or correct the URL in --data or NLAC_DATA"),
    ],
)
def test_a_url_that_is_none_of_a_data_root_exits_with_2(host: Host, url: str, said: str) -> None:
    host("here")
    for words in (("runs", "list"), ("verify",), ("sql", "select 1")):
        done = nlac(*words, "--data", url)
        assert done.exit_code == 2, done.output
        assert said in done.stderr and "hidden" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "AWS_ACCESS_KEY_ID",
            "wrong",
            "access is refused; correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        ("AWS_ACCESS_KEY_ID", None, "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "its server can't be reached; correct AWS_ENDPOINT_URL"),
    ],
)
def test_a_bucket_that_can_t_be_opened_exits_with_2_and_the_remedy(
    host: Host, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, said: str
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    host("here")
    monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    for words in (("runs", "list"), ("verify",)):
        done = nlac(*words, "--data", URL)
        assert done.exit_code == 2 and said in done.stderr and URL in done.stderr, done.output
        assert "test-secret" not in done.output


def test_doctor_asks_the_bucket(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host("here").root
    assert [found.said for found in bucket(root, None)] == [f"{URL} answers; 0 runs; its mirror is {root}"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    (refused,) = bucket(root, None)
    assert refused.state == "bad" and "correct AWS_ACCESS_KEY_ID" in refused.remedy
    assert [found.said for found in bucket(root.parent, None)] == ["none; the data root is a folder"]


def test_without_the_package_it_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host("here")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    done = nlac("runs", "list", "--data", URL)
    assert done.exit_code == 2 and "pip install 'nlac[s3]'" in done.stderr


def test_a_server_that_ignores_conditions_is_refused_before_anything_is_written(
    store: Store, host: Host, s3: S3Server
) -> None:
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    s3.honours_conditions = False
    host("here")
    done = nlac("runs", "copy", "trial", "--data", str(store.root), "--to", URL)
    assert done.exit_code == 2 and "ignores If-None-Match" in done.stderr
    assert set(s3.objects) == {"some/place/.nlac"}


def test_a_request_that_stays_broken_ends_the_command_with_1(
    host: Host, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    host("here")
    s3.faults.append(Fault("503", "GET", "", times=100))
    done = nlac("runs", "list", "--data", URL)
    assert done.exit_code == 1 and "SlowDown" in done.stderr and "Debug source" not in done.stderr


def test_a_folder_may_be_named_by_a_url(store: Store) -> None:
    commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    done = nlac("runs", "list", "--format", "json", "--data", Path(store.root).as_uri())
    assert [row["run"] for row in json.loads(done.stdout)] == ["trial"]
