"""docs/extending.md: its examples run as they stand."""

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import prompts
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from schemas.rows import TABLES
from storage.sql.views import connect
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.algorithms.nlac import NLAC
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import run_stages
from tasks.pipeline.plan import plan
from tasks.pipeline.registry import STAGES

PAGE = (PROJECT_ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def example(file: str) -> str:
    """The block of the page that follows the name of a file."""
    found = re.search(rf"`{re.escape(file)}`[^`]*(?:`[^`\n]+`[^`]*)*?\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"docs/extending.md shows no {file}"
    return found[1]


def load(file: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as the module that it would be."""
    name = file.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(example(file), file, "exec"), module.__dict__)
    return module


def test_an_algorithm_is_one_file_and_one_line(
    store: Store, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load("tasks/algorithms/sampled_q.py", monkeypatch).SAMPLED_Q
    monkeypatch.setitem(ALGORITHMS, made.name, made)
    config = make_config(algorithm="sampled_q", improvement={"states": 2, "actions": 2, "futures": 1})
    check_config(config, store.root)
    assert [row.stage for row in plan(config)] == list(made.stages)
    asyncio.run(run_stages(store, config, ["rollout", "replay-draw", "critique", "refinement"]))
    critiques = store.committed("trial", "critique", 0)
    assert critiques is not None
    rows = critiques.scan("critiques").collect()
    assert rows.height == 4 and rows["yes_probability"].is_not_null().all()
    assert set(critiques.scan("futures").collect()["source"]) == {"rollout"}


def test_a_stage_is_its_file_its_rows_its_template_and_one_line(
    store: Store, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = tmp_path / "post_mortem.j2"
    template.write_text(example("prompts/post_mortem.j2"), encoding="utf-8")
    monkeypatch.setitem(prompts._SHIPPED, "post_mortem", template)
    rows = load("schemas/rows/post_mortems.py", monkeypatch)
    monkeypatch.setitem(TABLES, "post_mortems", rows.PostMortem)
    stage = load("tasks/stages/post_mortem.py", monkeypatch).STAGE
    monkeypatch.setitem(STAGES, stage.name, stage)
    explained = replace(NLAC, name="explained", stages=("rollout", "post-mortem", *NLAC.stages[1:]))
    monkeypatch.setitem(ALGORITHMS, explained.name, explained)
    config = make_config(algorithm="explained")
    assert [row.stage for row in plan(config)][:2] == ["rollout", "post-mortem"]
    committed = asyncio.run(run_stages(store, config, ["rollout", "post-mortem"]))
    made = committed.scan("post_mortems").collect()
    assert made.height > 0 and (made["reason"] != "").all()
    assert decide(store, config, "post-mortem", 0).reuse
    query = "select count(*) from post_mortems join episodes using (episode_id) where not success"
    assert connect(store).sql(query).fetchall() == [(made.height,)]
