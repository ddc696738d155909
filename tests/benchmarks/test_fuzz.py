"""A slice of the hostile completions and of the random configurations."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reliability import fuzz as module
from benchmarks.reliability import random_yaml
from benchmarks.reliability.mutations import ADVERSARIAL, completions, corpus
from schemas.load import PROJECT_ROOT


def test_completions_follow_from_their_seed_and_begin_with_what_is_written() -> None:
    first, again, other = (list(completions(600, seed)) for seed in (0, 0, 1))
    plain = [*corpus(), *ADVERSARIAL]
    assert first == again and first[: len(plain)] == plain == other[: len(plain)]
    assert first[len(plain) :] != other[len(plain) :]


@pytest.mark.slow
def test_no_completion_raises_and_every_branch_of_the_parsers_is_reached(tmp_path: Path) -> None:
    # A process of its own: the branches may be measured of this one already.
    command = [sys.executable, "-m", "benchmarks.reliability.fuzz", "--completions=1000", "--branches"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [*command, f"--out={tmp_path}"], cwd=PROJECT_ROOT, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    modules = json.loads((tmp_path / "fuzz_branches.json").read_text())["modules"]
    assert len(modules) == 19 and sum(found["branches"] for found in modules.values()) > 200


def test_what_raises_is_kept_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, before: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "PARSERS", {"broken": (broken, ())})
    monkeypatch.setattr(module, "players", dict)
    found = asyncio.run(module.fuzz(["one", "two"], verify=False))
    assert found.raised == {"broken: ZeroDivisionError in test_fuzz.py:broken": ["one", "two"]}


def test_fuzzing_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARSERS", {"a parser": (lambda text, before: None, ())})
    monkeypatch.setattr(module, "players", dict)
    monkeypatch.setattr(module, "verifiers", dict)
    module._in_chunks(20, 0, tmp_path)
    found = module._in_chunks(50, 0, tmp_path)
    kept = json.loads((tmp_path / "fuzz.json").read_text())
    assert found.read["a parser"] == kept["read"]["a parser"] == kept["completions"] == 50


@pytest.mark.slow
def test_random_configurations_are_refused_or_can_be_used() -> None:
    codes, wrong = random_yaml.check(80)
    assert wrong == {} and codes[0] and codes[2]
