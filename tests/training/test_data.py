"""Rows as tokens, and which rows make up which step."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.chat.tokenizers import ChatTokenizer
from tasks.training.batches import MixedIn, plan_batches
from tasks.training.data import TooLong, encode
from tests.support.tiny_rows import critic, policy


def test_the_label_is_the_segments_tokens_and_the_end_of_turn(chat: ChatTokenizer) -> None:
    row = encode(critic(1), chat, 256)
    text = chat.tokenizer.decode(row.label_ids)
    assert text == "Thought: low\nFuture: it fails soon<|im_end|>"
    begin, end = row.segment_spans[1]
    assert chat.tokenizer.decode(row.label_ids[begin:end]) == " it fails soon"
    prompt = chat.tokenizer.decode(row.prompt_ids)
    assert (
        prompt
        == "<|im_start|>user\nIn this game the last guess was 1. Next?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_row_longer_than_the_context_is_refused_by_name_and_one_that_just_fits_is_not(
    chat: ChatTokenizer,
) -> None:
    tokens = encode(critic(1), chat, 256).tokens
    assert encode(critic(1), chat, tokens).tokens == tokens
    with pytest.raises(TooLong, match=r"critic/1: .* model\.context_length"):
        encode(critic(1), chat, tokens - 1)


@given(
    own=st.integers(1, 70),
    others=st.integers(0, 20),
    batch_rows=st.integers(1, 20),
    mix=st.sampled_from([0.0, 0.25, 0.5]),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_each_own_row_is_in_one_batch_an_epoch_and_the_other_role_has_its_share(
    own: int, others: int, batch_rows: int, mix: float, epochs: int, seed: int
) -> None:
    share = min(round(batch_rows * mix), others)
    plan = plan_batches(range(own), batch_rows, epochs, seed, MixedIn(range(own, own + others), mix))
    uses = Counter(row for batch in plan for row in batch)
    assert all(uses[row] == epochs for row in range(own))
    assert len(plan) == epochs * -(-own // (batch_rows - share))
    for batch in plan:
        assert len(batch) <= batch_rows
        assert len(set(batch)) == len(batch)
        assert sum(row >= own for row in batch) == share
    for epoch in range(epochs):
        steps = len(plan) // epochs
        seen = [row for batch in plan[epoch * steps : (epoch + 1) * steps] for row in batch if row < own]
        assert sorted(seen) == list(range(own))
    other_uses = [uses[row] for row in range(own, own + others)]
    assert not other_uses or max(other_uses) - min(other_uses) <= 1


def test_own_rows_are_spread_evenly_instead_of_leaving_a_small_last_batch() -> None:
    plan = plan_batches(range(13), 6, 1, 0)
    assert sorted(len(batch) for batch in plan) == [4, 4, 5]


def test_the_plan_follows_from_the_seed() -> None:
    plans = [plan_batches(range(40), 8, 2, seed, MixedIn(range(40, 50), 0.25)) for seed in (3, 3, 4)]
    assert plans[0] == plans[1] != plans[2]


def test_a_mix_without_room_for_own_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="lower mix"):
        plan_batches(range(4), 4, 1, 0, MixedIn(range(4, 8), 1.0))


def test_rows_and_digests_need_no_torch() -> None:
    code = (
        "import sys, tasks.training.batches, tasks.training.job, tasks.training.adapters, tasks.training.launch;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_policy_rows_have_nothing_scored(chat: ChatTokenizer) -> None:
    assert encode(policy(1), chat, 256).scored_segment is None
