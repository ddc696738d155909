"""deploy/Dockerfile and what it installs. It is read here, not built."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from schemas.load import PROJECT_ROOT
from tests.support.tracked import tracked_files

DEPLOY = PROJECT_ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = Path(sys.executable).with_name("hadolint")
OF_CUDA = {"apache-tvm-ffi", "triton"}
"""Packages that torch and vLLM on CUDA pin to other versions than vLLM on a CPU."""


def pins(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {one.name.lower().replace("_", "-"): str(one.specifier).removeprefix("==") for one in found}


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    program = HADOLINT if HADOLINT.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    return subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    checked = hadolint(DOCKERFILE)
    assert checked.returncode == 0, checked.stdout


def test_hadolint_finds_a_planted_mistake() -> None:
    assert "DL3006" in hadolint(DOCKERFILE.replace("python:3.11-slim-bookworm", "python")).stdout
    assert "DL3000" in hadolint(DOCKERFILE.replace("WORKDIR /opt/nlac", "WORKDIR opt/nlac")).stdout


def test_the_images_run_without_privileges_and_hold_no_secret() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    for stage in (one for one in stages if re.match(r"base AS (control|nlac)\n", one)):
        assert re.findall(r"^USER (.*)$", stage, re.MULTILINE)[-1] == "10001:10001"
    assert not re.search(
        r"(?i)^(ARG|ENV)?\s*\w*(TOKEN|PASSWORD|SECRET|AUTH_STRING|_KEY)\w*\s*=", DOCKERFILE, re.MULTILINE
    )
    assert "NVIDIA_VISIBLE_DEVICES" not in DOCKERFILE, "it would give pods GPUs that they did not ask for"


def test_what_is_installed_has_the_versions_that_the_tests_run_with() -> None:
    installed, tested = pins(DEPLOY / "requirements.txt"), pins(PROJECT_ROOT / "constraints.txt")
    both = installed.keys() & tested.keys()
    assert len(both) > 150
    assert {name for name in both if installed[name] != tested[name]} == OF_CUDA


def test_what_is_installed_covers_the_program_and_what_a_cluster_needs() -> None:
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = ("vllm", "kubernetes", "postgres", "s3")
    wanted = [
        Requirement(one)
        for one in (*project["dependencies"], *(one for name in needed for one in extras[name]))
    ]
    installed = pins(DEPLOY / "requirements.txt")
    wrong = [
        str(one) for one in wanted
        if not one.specifier.contains(installed.get(one.name.lower(), "0"), prereleases=True)
    ]  # fmt: skip
    assert wrong == [], "run: python deploy/lock.py"


def test_the_image_holds_the_program_and_nothing_else() -> None:
    lines = (PROJECT_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    tracked = {file.as_posix() for file in tracked_files()}
    assert all(any(file == name or file.startswith(f"{name}/") for file in tracked) for name in kept)
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert packages | {"pyproject.toml", "setup.py", "prefect.yaml", "README.md", "nlac_taskset.py"} <= kept
    assert not {name for name in kept if name.split("/")[0] in ("data", "tests", "benchmarks", ".git")}
