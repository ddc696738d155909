"""Libraries imported without packages that they would take along."""

from importlib import import_module
from pathlib import Path

import pytest

from tasks.lean_imports import without


def test_a_package_is_hidden_within_and_there_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "an_extra.py").write_text("")
    (tmp_path / "a_library.py").write_text(
        "try:\n    import an_extra\nexcept ImportError:\n    an_extra = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with without("an_extra", "pathlib"):
        assert import_module("a_library").an_extra is None
        assert import_module("pathlib").Path is Path, "what is imported already stays"
    assert import_module("an_extra").__name__ == "an_extra"
