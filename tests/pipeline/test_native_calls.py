"""Native calls of tools: one form in the tables, each family's own in prompts and labels."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config
from schemas.load import ConfigError
from storage.history import State, Turn
from storage.store import Store
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.pipeline.checks import check_config
from tasks.prompting.native_calls import action_message, action_text, native_chat
from tests.support.families import FAMILIES, make_checkpoint, make_tokenizer
from tests.support.iterations import ROLES, Iterate
from tests.support.tool_game import GUESS, ToolGame

FORM = ToolGame.action_format
CALL = '{"name": "guess", "arguments": {"number": 5}}'
GAME = {"name": "tests.support.tool_game:ToolGame", "options": {}}


def native(**policy: object) -> dict[str, dict[str, object]]:
    roles: dict[str, dict[str, object]] = {role: {"engine": "rules", "structured": False} for role in ROLES}
    return {**roles, "policy": {**roles["policy"], "tool_calls": "native", **policy}}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_action_is_the_same_text_whichever_family_writes_it(family: str) -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES[family]))
    text = f"Thought: the middle\nAction: {CALL}"
    written = chat.answer_text(action_message(text, FORM), (GUESS,))
    kept = "" if family == "llama3" else "Thought: the middle\n"  # no room beside a call
    assert action_text(written) == f"{kept}Action: {CALL}"


def test_words_alone_are_an_action_and_what_cannot_be_read_is_none() -> None:
    assert action_text("Hello?") == "Action: Hello?"
    broken = '<tool_call>{"name": </tool_call>'
    twice = f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    for text in (broken, twice, ""):
        assert action_text(text) == text
    assert action_message("Thought: hm\nAction: Hello?", FORM) == {"role": "assistant", "content": "Hello?"}


def test_what_is_seen_after_a_call_is_the_tools_answer() -> None:
    state = State((Turn("Which?", f"Thought: try\nAction: {CALL}"), Turn("lower", "Action: Hm?")), "Go on.")
    asked, call, answer, words, last = native_chat(state, FORM)
    assert [m["role"] for m in (asked, call, answer, words, last)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert call["content"] == "try" and call["tool_calls"][0]["function"] == json.loads(CALL)
    assert answer["tool_call_id"] == call["tool_calls"][0]["id"] and answer["content"] == "lower"


def test_an_iteration_with_native_calls(
    store: Store, make_config: Callable[..., Config], iterate: Iterate, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(FAMILIES["qwen3"], tmp_path / "model")
    config = make_config(
        "tests.support.tool_game:player",
        model={"name": str(checkpoint)},
        environment=GAME,
        roles=native(),
    )
    check_config(config, tmp_path)
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    played = results["rollout"].scan("transitions").collect()
    calls = played.filter(pl.col("action").str.starts_with("{"))
    assert calls["action_valid"].all() and set(calls["thought"]) == {"Let me try."}
    assert set(played["action"]) - set(calls["action"]) == {"Hello?"}
    refined = results["refinement"].scan("refinements").filter(pl.col("distil")).collect()
    rows = results["policy-distillation"].scan("training_rows").filter(pl.col("role") == "policy").collect()
    lengths = dict(zip(rows["source_id"], rows["label_tokens"], strict=True))
    chat = load_chat_tokenizer(checkpoint)
    assert lengths and set(refined["refinement_id"]) == set(lengths)
    for row in refined.to_dicts():
        text = (
            f"Thought: {row['thought']}\nAction: {row['action']}"
            if row["thought"]
            else f"Action: {row['action']}"
        )
        written = chat.answer_text(action_message(text, FORM), (GUESS,))
        assert ("<tool_call>" in written) == row["action"].startswith("{")
        assert lengths[row["refinement_id"]] == len(chat.segment_ids([written])[0]) + 1


def test_native_calls_need_tools_and_no_format(make_config: Callable[..., Config], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"roles\.policy\.tool_calls: .* offers no tools"):
        check_config(make_config(roles=native()), tmp_path)
    with pytest.raises(ValidationError, match="set structured to false"):
        make_config(roles=native(structured=True))
    with pytest.raises(ValidationError, match="only the policy calls tools"):
        make_config(
            roles={**native(), "refine": {"engine": "rules", "structured": False, "tool_calls": "native"}}
        )
