"""What is generated from the code is up to date."""

import subprocess
import sys

import pytest

from schemas.load import PROJECT_ROOT


@pytest.mark.slow
@pytest.mark.parametrize("script", ["reference.py", "deployments.py", "chain_of_texts.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(PROJECT_ROOT / "docs" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
