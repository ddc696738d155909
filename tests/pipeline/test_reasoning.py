"""A thinking model in every role: its hidden thought is kept apart in each table, and is in no prompt."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config
from storage.store import Store
from tasks.runtime.stage import StageFailed
from tests.support.iterations import ROLES, Iterate
from tests.support.thinking_rules import SECRET

FREE = {"structured": False, "thinking": True}
THINKING = {role: {"engine": "rules", **FREE} for role in ROLES}
KEPT = {
    "rollout": {"transitions": ["reasoning"]},
    "bellman-targets": {
        "bellman_targets": ["reasoning", "next_action_reasoning", "next_future_reasoning"],
    },
    "cot-correction": {"corrected_targets": ["reasoning", "label_reasoning"]},
    "critique": {"critiques": ["reasoning", "action_reasoning"], "futures": ["reasoning"]},
    "refinement": {"refinements": ["reasoning", "label_reasoning"]},
}


def texts(value: Any) -> list[str]:
    """All texts within a row's value."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


def without_reasoning(value: Any) -> Any:
    """The same without columns of hidden thought."""
    if isinstance(value, dict):
        return {name: without_reasoning(v) for name, v in value.items() if not name.endswith("reasoning")}
    return [without_reasoning(part) for part in value] if isinstance(value, list) else value


def test_hidden_thought_is_kept_with_every_answer_and_is_in_no_later_prompt(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config(
        "tests.support.thinking_rules:thinks",
        roles=THINKING,
        backup={"draws": 2},
        improvement={"states": 8, "rounds": 2},
    )
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    for stage, tables in KEPT.items():
        for table, columns in tables.items():
            rows = results[stage].scan(table).collect()
            assert set(rows["status"]) <= {"ok", "invalid_action"}, (table, rows["error"].unique())
            for column in columns:
                kept = rows[column].drop_nulls()
                assert len(kept) and kept.str.starts_with(SECRET).all(), (table, column)
            assert SECRET not in "".join(texts(without_reasoning(rows.to_dicts())))
    targets = results["bellman-targets"].scan("bellman_targets").filter(~pl.col("terminal")).collect()
    draws = targets["other_draws"].explode().struct.unnest()
    assert draws["next_action_reasoning"].str.starts_with(SECRET).all()
    assert draws["next_future_reasoning"].str.starts_with(SECRET).all()
    assert set(results["critic-sft"].scan("training_rows").collect()["status"]) == {"ok"}


def test_a_thought_that_fills_the_cap_says_so_and_is_no_answer(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    roles = {**THINKING, "predict": {"engine": "silent", **FREE}}
    silent = {"backend": "scripted", "rules": "tests.support.thinking_rules:never_ends"}
    config = make_config("tests.support.thinking_rules:thinks", roles=roles, engines={"silent": silent})
    # Terminal transitions need no d', so targets are left and the iteration goes on up to the critique.
    with pytest.raises(StageFailed, match="critique"):
        iterate(config)
    made = store.committed("trial", "bellman-targets", 0)
    assert made is not None
    rows = made.scan("bellman_targets").filter(pl.col("status") == "next_future_failed").collect()
    assert len(rows) and rows["error"].str.contains("filled max_tokens").all()
    assert rows["next_future_reasoning"].str.starts_with(SECRET).all()


def test_thinking_under_a_format_is_refused(make_config: Callable[..., Config]) -> None:
    with pytest.raises(ValidationError, match="set structured to false"):
        make_config(roles={"policy": {"engine": "rules", "structured": True, "thinking": True}})
