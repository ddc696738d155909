"""A completion being written: what ends it."""

from pathlib import Path

from tasks.chat.tokenizers import load_chat_tokenizer
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
