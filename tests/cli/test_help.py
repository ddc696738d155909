"""What helps before a command runs: examples, exit codes, completion; and lists that a program can read."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from flows.cli.examples import EXAMPLES, EXIT_CODES
from flows.cli.main import app
from flows.cli.options import FAILED, LOST, USAGE
from schemas.config import Config
from schemas.load import PROJECT_ROOT, dump_config
from storage.store import Store
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.rows import episode, evaluation


def commands() -> Iterator[tuple[str, Any]]:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {one}", c) for one, c in inner.items()) if inner else [(name, command)]


def test_every_command_has_examples_and_no_example_is_of_one_that_is_gone() -> None:
    assert {name for name, _ in commands()} == set(EXAMPLES)


def test_every_example_can_be_typed_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.imports.allow_imports", lambda modules: None)
    known = dict(commands())
    for name, lines in EXAMPLES.items():
        for line in lines:
            assert line.startswith(f"nlac {name}"), line
            words = shlex.split(line)[1 + len(name.split()) :]
            known[name].make_context(name, words)  # raises where an option or an argument is unknown


@pytest.mark.parametrize("command", [("sql",), ("runs", "compare")])
def test_help_ends_with_the_examples(store: Store, command: tuple[str, ...]) -> None:
    said = " ".join(nlac(store, *command, "--help").stdout.split())
    assert all(line in said for line in EXAMPLES[" ".join(command)])


def test_the_help_names_every_exit_code(store: Store) -> None:
    said = " ".join(nlac(store, "--help").stdout.split())
    assert set(EXIT_CODES) == {0, FAILED, USAGE, LOST}
    assert all(f"{code} {meaning}" in said for code, meaning in EXIT_CODES.items())


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("nlac ex", ["explain", "export"]),
        ("nlac runs compare fi", ["first"]),
        ("nlac play --run s", ["second"]),
        ("nlac sql --format v", ["vertical"]),
    ],
)
def test_the_shell_completes_commands_options_and_runs(
    store: Store, typed: str, completed: list[str]
) -> None:
    for run in ("first", "second"):
        commit_rows(store, "rollout", 0, {}, run=run)
    at = str(len(typed.split()) - 1)
    asked = {"_NLAC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": at}
    said = CliRunner().invoke(app, [], env={**asked, "NLAC_DATA": str(store.root)}, prog_name="nlac")
    assert said.stdout.split() == completed


def listed(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_list_can_be_read_by_a_program(store: Store, tmp_path: Path) -> None:
    commit_rows(store, "rollout", 0, {"episodes": [episode(status="engine_error", error="\x1b[31mgone")]})
    tables = {row["name"]: row for row in listed(nlac(store, "sql", "--format", "json"))}
    assert ("success", "BOOLEAN") in {(c["name"], c["type"]) for c in tables["episodes"]["columns"]}
    environments = listed(nlac(store, "env", "list", "--format", "json"))
    assert {"frozen_lake", "math"} <= {row["name"] for row in environments}
    whole = listed(nlac(store, "verify", "--format", "json"))
    assert (whole["files"], whole["faults"], whole["unreferenced"]) == (1, [], [])
    failed = nlac(store, "show", "--failed", "--format", "json")
    assert [row["status"] for row in listed(failed)] == ["engine_error"] and "\x1b" not in failed.stdout
    small = tmp_path / "small.yaml"
    small.write_text(
        dump_config(Config.model_validate({"model": {"name": str(tmp_path), "dtype": "float32"}}))
    )
    (tmp_path / "config.json").write_text("{}")
    planned = listed(nlac(store, "config", "check", str(small), "--format", "json"))
    first = planned["stages"][0]
    assert first["stage"] == "rollout" and first["requests"] > 0 and planned["memory"] == []
    assert planned["dtype"] == {"dtype": "float32", "reason": "as configured"}


def test_what_verify_finds_wrong_ends_with_3_as_json_too(store: Store) -> None:
    made = commit_rows(store, "rollout", 0, {"episodes": [episode()]})
    (made.path / "episodes.parquet").unlink()
    said = nlac(store, "verify", "--format", "json")
    assert said.exit_code == LOST
    assert [fault["missing"] for fault in json.loads(said.stdout)["faults"]] == [True]


def test_gc_lists_what_it_would_remove(store: Store) -> None:
    for attempt in (1, 2):
        commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", attempt)]}, attempt=attempt)
    (row,) = listed(nlac(store, "gc", "--format", "json"))
    assert (row["kind"], row["run"], row["removed"]) == ("superseded attempt", "trial", False)
    assert row["bytes"] > 0 and (store.root / row["path"]).is_dir()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("main", {"duckdb", "polars", "torch", "prefect", "mlflow", "textarena"}),
        ("status", {"torch", "prefect", "pandas"}),
    ],
)
def test_help_imports_nothing_heavy_and_status_what_it_needs(module: str, heavy: set[str]) -> None:
    code = f"import sys, flows.cli.{module}; sys.exit(sorted({heavy} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"
