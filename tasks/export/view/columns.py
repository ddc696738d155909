"""Which columns of a row the page holds, and in what form."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]

BY = ("model_version", "temperature", "prompt_tokens", "completion_tokens", "finish_reason")
STATUS = ("status", "error")
EPISODE = (
    "episode_id", "run", "iteration", "split", "environment", "task_id", "policy_version", "reward", "game_reward",
    "success", "done", "truncated", "invalid_actions", *STATUS,
)  # fmt: skip
STEP = (
    "transition_id", "observation", "raw_action", "thought", "reasoning", "action", "action_valid", "reward",
    "success", "done", "truncated", "policy_version", *STATUS,
)  # fmt: skip
TARGET = (
    "target_id", "terminal", "next_action_text", "next_future", "next_future_malformed", "description", "malformed",
    "reasoning", *STATUS,
)  # fmt: skip
LABEL = (
    "corrected_id", "verdict", "thought", "leak_before", "leak_after", "attempts", "label_reasoning",
    "reasoning_verdict", *STATUS,
)  # fmt: skip
CRITIQUE = (
    "critique_id", "round", "action_source", "action_text", "action", "optimal", "critique", "yes_probability",
    "reasoning", *STATUS,
)  # fmt: skip
FUTURE = ("future_id", "thought", "description", "malformed", "source", "policy_version", *STATUS)
REFINEMENT = (
    "refinement_id", "round", "kind", "action_text", "thought", "action", "valid", "changed", "verdict",
    "leak_before", "leak_after", "distil", "distil_reason", "label_reasoning", "reasoning", *STATUS,
)  # fmt: skip


def provenance(generation: Mapping[str, Any] | None) -> list[Any] | None:
    """Who wrote a text, and how much: a page has tens of thousands of these, so they are lists in the order of BY."""
    return [generation[name] for name in BY] if generation is not None else None


def compact(row: Mapping[str, Any]) -> Row:
    """The row without what is NULL or empty, and without the status 'ok'."""
    return {
        name: value
        for name, value in row.items()
        if value is not None and value != "" and value != [] and (name, value) != ("status", "ok")
    }


def only(row: Mapping[str, Any], names: Iterable[str]) -> Row:
    """The row's columns of these names, where it has them."""
    return {name: row[name] for name in names if name in row}


def grouped(found: Iterable[Row], key: str) -> defaultdict[str, list[Row]]:
    """Rows by the value of a column; none for another value."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        groups[row[key]].append(row)
    return groups
