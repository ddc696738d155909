"""A configuration imports nothing from outside the program that the user has not named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli.main import app
from flows.stack.environment import service_environment
from schemas.config import EngineSection, EnvironmentSection
from tasks.engines.scripted import RulesError, ScriptedEngine, load_rules
from tasks.environments import UnusableEnvironment, make_environment
from tasks.imports import ALLOW_IMPORT, ImportRefused, allow_imports, load_named

ROLES = ("policy", "predict", "bootstrap", "correct", "evaluate", "refine")


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mark that a module outside the program leaves when it is imported; nothing is allowed."""
    mark = tmp_path / "imported"
    (tmp_path / "stranger.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef make(**options): return options\ndef rules(request): return 'x'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    monkeypatch.setenv(ALLOW_IMPORT, "")
    return mark


def test_config_check_runs_no_code_that_is_not_allowed(stranger: Path, tmp_path: Path) -> None:
    file, command = tmp_path / "run.yaml", ["config", "check", "--data", str(tmp_path / "data")]
    for path, option in (("subprocess:getoutput", {"cmd": f"touch {stranger}"}), ("stranger:make", {})):
        file.write_text(yaml.safe_dump({"environment": {"name": path, "options": option}}))
        said = CliRunner().invoke(app, [*command, str(file)])
        module = path.partition(":")[0]
        assert said.exit_code == 2
        assert f"environment.name: '{path}' is not" in said.stderr
        assert f"--allow-import {module}, or {ALLOW_IMPORT}={module}" in said.stderr
        assert not stranger.exists()
    engines = {"rules": {"backend": "scripted", "rules": "stranger:rules"}}
    roles = {role: {"engine": "rules"} for role in ROLES}
    file.write_text(yaml.safe_dump({"engines": engines, "roles": roles}))
    said = CliRunner().invoke(app, [*command, str(file)])
    assert said.exit_code == 2 and "engines.rules.rules: 'stranger:rules' is not" in said.stderr
    assert not stranger.exists()
    said = CliRunner().invoke(app, [*command, "--allow-import", "stranger", str(file)])
    assert stranger.exists() and "stranger" not in said.stderr


@pytest.mark.parametrize(
    "path",
    ["os:system", "builtins:exec", "tasks.environments.verifier:subprocess", "tasks.environments.base:Path",
     "storage.files:replace_text", "tasks_environments:x", "tasks.environmentsx:x", "strange:r",
     "tasks.environments.verifier:_call", "tasks.environments.verifier_process:answer",  # run what options name
     "tasks.environments.interchange.from_verifiers:FromVerifiers"],
)  # fmt: skip
def test_what_is_not_an_environment_of_the_program_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_IMPORT, "stranger, strangers")
    with pytest.raises(ImportRefused, match=path):
        load_named(*path.split(":"))
    with pytest.raises(UnusableEnvironment, match="--allow-import"):
        make_environment(EnvironmentSection(name=path, options={}))
    with pytest.raises(RulesError, match="--allow-import"):
        ScriptedEngine(EngineSection(backend="scripted", rules=path))


def test_no_function_of_the_program_is_called_with_a_configuration_s_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOW_IMPORT, "")
    mark, file = tmp_path / "ran", tmp_path / "run.yaml"
    call = {"function": "os:system", "arguments": [f"touch {mark}"], "seconds": 5, "isolated": False}
    for path, options in (
        ("tasks.environments.verifier:_call", {"line": json.dumps(call)}),
        ("tasks.environments.verifier_process:answer", {"call": call}),
    ):
        file.write_text(yaml.safe_dump({"environment": {"name": path, "options": options}}))
        said = CliRunner().invoke(app, ["config", "check", "--data", str(tmp_path / "data"), str(file)])
        assert said.exit_code == 2 and f"'{path}' is not an environment" in said.stderr
    assert not mark.exists()


def test_the_rules_that_ship_are_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_IMPORT, "")
    for world in ("frozen_lake", "line_walk"):
        assert callable(load_rules(f"tasks.environments.{world}.roles:rules"))


def test_workers_inherit_what_is_allowed(stranger: Path, tmp_path: Path) -> None:
    allow_imports(["stranger", "another.part"])
    allow_imports(["stranger"])
    assert os.environ[ALLOW_IMPORT] == "stranger,another.part"
    environment = service_environment(tmp_path, "http://127.0.0.1:1/api")
    assert environment[ALLOW_IMPORT] == "stranger,another.part"
    script = "from tasks.imports import load_named; print(load_named('stranger', 'make')(a=1))"
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == "{'a': 1}\n", done.stderr
