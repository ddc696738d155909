"""What `nlac` refuses before it starts or creates anything; needs no server."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.load import PROJECT_ROOT


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("episodes: 3", "episodes"),
        ("rollout: {episodes: many}", "rollout.episodes"),
        ("model: {name: /no/such}", "model.name"),
        ("environment: {name: chess}", "environment.name"),
    ],
)
def test_a_bad_configuration_exits_with_2_and_creates_nothing(
    tmp_path: Path, content: str, named: str
) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    data = tmp_path / "data"
    for command in ("iterate", "up"):
        options = ["--data", str(data), "--config", str(tmp_path / "bad.yaml")]
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", command, *options],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert named in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not data.exists()
