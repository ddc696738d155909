"""The example in docs/environments.md, as somebody else would use it: a file outside the package."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.environments.registry import BUILTIN
from tasks.imports import ALLOW_IMPORT
from tasks.pipeline.checks import check_config
from tests.support.iterations import Iterate

PAGE = (PROJECT_ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


@pytest.fixture
def nim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """nim.py in a folder that Python finds modules in."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "nim.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv(ALLOW_IMPORT, "tests,nim")
    yield folder / "nim.py"
    sys.modules.pop("nim", None)


def test_the_example_runs_a_whole_iteration_from_outside_the_package(
    nim: Path, make_config: Callable[..., Config], iterate: Iterate, store: Store
) -> None:
    config = make_config(
        "tests.support.answer_rules:takes",
        environment={"name": "nim:Nim", "options": {"largest": 12}},
        rollout={"episodes": 12, "max_steps": 8, "exploration": 0.3},
    )
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert len(made) == 8
    episodes = made["rollout"].scan("episodes").collect()
    assert set(episodes["environment"]) == {"nim"}
    assert episodes["success"].any() and not episodes["success"].all() and episodes["done"].all()
    assert made["refinement"].scan("refinements").filter(pl.col("distil")).collect().height
    row = made["evaluation"].scan("evaluations").collect().row(0, named=True)
    assert row["baseline"] == "random" and 0 < row["baseline_success_rate"] < 1


def test_the_example_is_short_and_has_no_fault(nim: Path) -> None:
    said = CliRunner().invoke(app, ["env", "validate", "nim:Nim", "--option", "largest=12"])
    assert (said.exit_code, said.stdout) == (
        0,
        "nim: no fault (100 train tasks, 20 validation tasks, 20 eval tasks)\n",
    )
    lines = [line for line in nim.read_text().splitlines() if line.strip()]
    assert len(lines) <= 65


def test_the_page_has_a_row_for_every_built_in_environment() -> None:
    table = PAGE.partition("## The built-in environments")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(BUILTIN)
