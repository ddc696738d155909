"""The batch scripts of deploy/slurm: a shell and Slurm read them, and what they call is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.load import PROJECT_ROOT

SCRIPTS = sorted((PROJECT_ROOT / "deploy" / "slurm").glob("*.sbatch"))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def shellcheck(script: Path) -> subprocess.CompletedProcess[str]:
    program = SHELLCHECK if SHELLCHECK.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    return subprocess.run([program, "--shell=bash", script], capture_output=True, text=True, check=False)


def test_there_is_a_script_for_one_node_and_one_for_workers() -> None:
    assert [script.name for script in SCRIPTS] == ["one_node.sbatch", "workers.sbatch"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    checked = shellcheck(script)
    assert checked.returncode == 0, checked.stdout


def test_shellcheck_finds_a_planted_mistake(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.sbatch"
    text = SCRIPTS[0].read_text(encoding="utf-8")
    spoilt.write_text(text.replace('cd "$NLAC_HOME"', "cd $NLAC_HOME"), encoding="utf-8")
    assert "SC2086" in shellcheck(spoilt).stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_slurm_reads_every_option_because_no_command_stands_before_one(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert len(options) > 5 and max(options) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in options)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_without_its_settings_names_the_one_that_is_missing(script: Path) -> None:
    ended = subprocess.run(
        ["bash", script], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert ended.returncode == 1 and "NLAC_HOME: the checkout" in ended.stderr
