"""A completion being written: what ends it."""

from pathlib import Path

import pytest

from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.local.engine import grammar_compiler
from tasks.engines.local.sampler import Row
from tasks.engines.protocol import Sampling


def test_the_token_that_ended_a_turn_is_reported_apart_from_its_text(byte_checkpoint: Path) -> None:
    """Of two that can end one, the one that was sampled."""
    tokenizer, ending = load_chat_tokenizer(byte_checkpoint), frozenset({2, 9})
    row = Row(Sampling(max_tokens=2), [1], ending, tokenizer)
    row.accept(70, -0.5)
    row.accept(9, -0.25)
    done = row.completion()
    assert (done.token_ids, done.logprobs, done.finish_reason) == ((70,), (-0.5,), "stop")
    assert (done.end_token_id, done.end_logprob) == (9, -0.25)
    cut = Row(Sampling(max_tokens=1), [1], ending, tokenizer)
    cut.accept(70, -0.5)
    done = cut.completion()
    assert (done.finish_reason, done.end_token_id, done.end_logprob) == ("length", None, None)


@pytest.mark.parametrize(
    ("regex", "text", "reason"),
    [
        (r"Future: [^\n]{1,120}", "Future: the agent fi", "length"),
        (r"Future: [^\n]{1,120}", "Future:", "length"),
        (r"\[[0-9]\]", "[7]", "stop"),
        (r"\[[0-9]{1,2}\]", "[77]", "stop"),
        ("up|upper", "up", "length"),
    ],
)
def test_a_text_that_its_grammar_would_continue_was_cut(
    byte_checkpoint: Path, regex: str, text: str, reason: str
) -> None:
    """Although it matches the grammar so far."""
    tokenizer = load_chat_tokenizer(byte_checkpoint)
    (tokens,), ending = tokenizer.segment_ids([text]), frozenset(tokenizer.end_ids)
    grammar = grammar_compiler(tokenizer, len(tokenizer.tokenizer), ending)(regex)
    row = Row(Sampling(max_tokens=len(tokens)), [1], ending, tokenizer, grammar)
    for token in tokens:
        row.accept(token, -0.5)
    assert (row.completion().text, row.completion().finish_reason) == (text, reason)
