"""What several commands are tested with."""

from pathlib import Path

import pytest

from schemas.config import Config


@pytest.fixture
def scripted(tmp_path: Path) -> Config:
    """A configuration whose model is a folder, so that nothing is loaded or converted."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return Config.model_validate({"run": "trial", "model": {"name": str(model), "dtype": "float32"}})
