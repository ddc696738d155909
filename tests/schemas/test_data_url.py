"""The folder that a data root's URL stands for."""

from pathlib import Path

import pytest

from schemas.data_url import ORIGIN, url_of
from schemas.load import data_root


@pytest.fixture(autouse=True)
def mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NLAC_MIRROR", str(tmp_path / "mirrors"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return tmp_path / "mirrors"


def test_a_bucket_has_one_mirror_however_it_is_spelled_which_is_its_user_s_alone(mirrors: Path) -> None:
    root = data_root("s3://bucket/some/place")
    assert root == data_root("s3://bucket//some/place/") and root.parent == mirrors
    assert url_of(root) == "s3://bucket/some/place" and root.stat().st_mode & 0o777 == 0o700
    assert data_root(root) == root, "the mirror is a data root too"
    assert {path.name for path in root.iterdir()} == {ORIGIN}


def test_prefixes_and_servers_have_mirrors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [data_root("s3://bucket"), data_root("s3://bucket/place"), data_root("s3://other/place")]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://elsewhere.example.org")
    assert len({*here, data_root("s3://bucket/place")}) == 4


def test_a_file_url_is_its_folder(tmp_path: Path) -> None:
    assert data_root((tmp_path / "with a space").as_uri()) == tmp_path / "with a space"
    assert url_of(tmp_path) is None
