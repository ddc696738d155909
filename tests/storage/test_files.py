"""Small file operations."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from polars.exceptions import ComputeError

from storage.files import FULL, full_disk_named


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
