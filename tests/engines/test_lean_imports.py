"""Libraries imported without packages that they would take along."""

import os
import subprocess
import sys
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


@pytest.mark.slow
def test_what_computes_models_is_imported_lean_and_keeps_few_shapes_unless_told_otherwise() -> None:
    seen = (
        "import os, sys\n"
        "from tasks.lean_imports import lean_transformers\n"
        "os.environ['LRU_CACHE_CAPACITY'] = '7'\n"
        "with lean_transformers():\n"
        "    told = os.environ.pop('LRU_CACHE_CAPACITY')\n"
        "with lean_transformers():\n"
        "    import tasks.training.trainer\n"
        "print(*(name in sys.modules for name in ('transformers', 'scipy', 'sklearn')), told)\n"
        "print(os.environ['LRU_CACHE_CAPACITY'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", seen], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False", "False", "7", "16"]
