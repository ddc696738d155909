"""The wheel works without the checkout: built from what git tracks, installed into an empty virtual environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from flows.stack.control import USUAL_PORT, usual_settings
from schemas.load import PROJECT_ROOT
from tests.support.tracked import tracked_files

pytestmark = [pytest.mark.wheel, pytest.mark.slow]
SETTINGS = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = {f"{name}.py" for name in SETTINGS["tool"]["setuptools"]["py-modules"]}
PACKAGES = [name.rstrip("*") for name in SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]]


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel, and a folder outside the checkout to run in."""

    wheel: Path
    home: Path
    folder: Path

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.home), "platbase": str(self.home)}))

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, with nothing of this process's Python paths."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "NLAC_DATA", "VIRTUAL_ENV")
        return subprocess.run(
            [self.home / "bin" / program, *arguments], cwd=self.folder, capture_output=True, text=True,
            env={name: value for name, value in os.environ.items() if name not in hidden},
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Build the wheel and install it alone; its dependencies are those of the environment that runs the tests."""
    place = tmp_path_factory.mktemp("wheel")
    source, home, folder = place / "source", place / "environment", place / "elsewhere"
    for path in tracked_files():  # a copy: an old build/ in the checkout would add what is gone
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT_ROOT / path, source / path)
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", place, source]
    _succeeds(build, place)
    (wheel,) = place.glob("*.whl")
    _succeeds([sys.executable, "-m", "venv", "--without-pip", home], place)
    _succeeds([*pip, "--python", home, "install", "--no-deps", "--no-index", "--no-compile", wheel], place)
    there = Installed(wheel, home, folder)
    # Plain paths, which come after the environment's own. The .pth files in them are not read, so that an editable
    # install there brings no finder that would lend a checkout's modules to an incomplete wheel.
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (there.packages / "dependencies.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    yield there
    shutil.rmtree(place)


def _succeeds(command: list[str | Path], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(installed: Installed) -> None:
    tracked = {str(path) for path in tracked_files() if path.parts[0] in PACKAGES and len(path.parts) > 1}
    with zipfile.ZipFile(installed.wheel) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licences = {Path(name).name for name in wheel.namelist() if "/licenses/" in name}
    assert shipped == tracked | MODULES | {"prefect.yaml"}
    assert licences == {"LICENSE", "NOTICE", "diff.LICENSE", "table-core.LICENSE", "uPlot.LICENSE"}


def test_the_installed_program_is_the_wheel_and_not_the_checkout(installed: Installed) -> None:
    names = [name for name in PACKAGES if (PROJECT_ROOT / name / "__init__.py").exists()]
    script = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    said = installed.run("python", "-c", script)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == [str(installed.packages / name / "__init__.py") for name in names]
    finders = installed.run("python", "-c", "import sys; print(*(f.__module__ for f in sys.meta_path))")
    assert "importlib" in finders.stdout and "__editable__" not in finders.stdout


def test_the_command_works_outside_the_checkout(installed: Installed) -> None:
    helped = installed.run("nlac", "--help")
    assert helped.returncode == 0, helped.stderr
    assert "config" in helped.stdout
    checked = installed.run("nlac", "config", "check")
    assert checked.returncode == 0, checked.stderr
    assert "The configuration can be used" in checked.stdout
    named = installed.run("nlac", "config", "show", "configs/proofs/frozen_lake.yaml")
    assert named.returncode == 0, named.stderr
    assert yaml.safe_load(named.stdout)["environment"]["name"] == "frozen_lake"
    assert list(installed.folder.iterdir()) == [], "a check creates nothing"


def test_data_of_an_installed_program_goes_to_the_working_directory(installed: Installed) -> None:
    said = installed.run("python", "-c", "from schemas.load import data_root; print(data_root())")
    assert said.stdout.strip() == str(installed.folder.resolve() / "data"), said.stderr


def test_the_local_stack_finds_its_deployments_in_the_wheel(installed: Installed) -> None:
    settings = yaml.safe_load((installed.packages / "prefect.yaml").read_text(encoding="utf-8"))
    files = {deployment["entrypoint"].partition(":")[0] for deployment in settings["deployments"]}
    assert files and all((installed.packages / file).is_file() for file in files)
    script = "from flows.stack.control import usual_settings; print(usual_settings())"
    named = installed.run("python", "-c", script).stdout.strip()
    assert named == "{}", "there is no pyproject.toml that would name an address"


def test_plain_prefect_commands_in_the_checkout_reach_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT_ROOT)
    assert usual_settings()["PREFECT_API_URL"] == f"http://127.0.0.1:{USUAL_PORT}/api"
