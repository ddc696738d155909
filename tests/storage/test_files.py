"""Small file operations."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from polars.exceptions import ComputeError

from storage import files
from storage.files import FULL, full_disk_named, replace_text


@pytest.mark.parametrize("kind", [RuntimeError, ComputeError])  # torch's, Polars'
@pytest.mark.parametrize("free", [0, FULL])
def test_a_full_disk_is_named_where_a_library_does_not(
    free: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises((OSError, kind)) as raised, full_disk_named(tmp_path):
        raise kind("basic_ios::clear: iostream error")
    assert isinstance(raised.value, kind if free else OSError)
    assert free or (raised.value.errno == errno.ENOSPC and "basic_ios" in str(raised.value))  # type: ignore[attr-defined]


def test_processes_of_one_number_on_two_hosts_do_not_write_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their data root may be one folder, and a process's number is its host's own."""
    asides = []
    for host in ("one", "two"):
        monkeypatch.setattr(files, "gethostname", lambda host=host: host)
        asides.append(files.beside(tmp_path / "current.json"))
    assert asides[0] != asides[1] and all(aside.parent == tmp_path for aside in asides)
    replace_text(tmp_path / "current.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["current.json"]
