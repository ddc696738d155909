"""Top-k scores of the transformers backend, against full logits."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.backends import build_engine
from tasks.engines.protocol import ScoreRequest, Scores, most_likely

QUESTION = (Message(role="user", content="Name a number."),)
SEGMENTS = ("Thought: low", "", " it is seven")


def test_the_most_likely_of_a_report_leave_the_given_token_out_where_it_is_not_among_them() -> None:
    report = {7: -9.0, 3: -1.0, 5: -0.5, 4: -1.0}
    assert most_likely(report, 3) == ((5, 3, 4), (-0.5, -1.0, -1.0))
    assert most_likely(report, 9)[0] == (5, 3, 4, 7)


@pytest.mark.slow
def test_top_k_scores_are_those_of_the_full_logits(tiny_model: Path, tmp_path: Path) -> None:
    """At full k they are the whole distribution: a sum of 1, and every token's own log-probability in it."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    vocabulary = model.config.vocab_size

    async def score() -> tuple[Scores, Scores]:
        section = ModelSection(name=str(tiny_model), dtype="float32", device="cpu")
        engine = build_engine(EngineSection(), section, tmp_path)
        few, all_of_them = await asyncio.gather(
            engine.score(ScoreRequest(QUESTION, SEGMENTS, top_k=4)),
            engine.score(ScoreRequest(QUESTION, SEGMENTS, top_k=vocabulary + 1)),
        )
        await engine.close()
        return few, all_of_them

    few, whole = asyncio.run(score())
    tokenizer = load_chat_tokenizer(tiny_model)
    prompt, segments = tokenizer.prompt_ids(QUESTION), tokenizer.segment_ids(SEGMENTS)
    tokens = [token for segment in segments for token in segment]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    assert [len(ids) for ids in few.top_ids] == [len(segment) for segment in segments]
    for position, (ids, values) in enumerate(
        zip(sum(few.top_ids, ()), sum(few.top_logprobs, ()), strict=True)
    ):
        best = expected[position].topk(4)
        assert ids == tuple(best.indices.tolist())
        assert values == pytest.approx(best.values.tolist(), abs=1e-4)
    full = zip(
        tokens, sum(whole.segments, ()), sum(whole.top_ids, ()), sum(whole.top_logprobs, ()), strict=True
    )
    for token, logprob, ids, values in full:
        assert sorted(ids) == list(range(vocabulary))
        assert torch.tensor(values).exp().sum().item() == pytest.approx(1.0, abs=1e-3)
        assert values[ids.index(token)] == logprob


def test_nothing_to_score_has_no_top_k(tiny_model: Path, tmp_path: Path) -> None:
    async def score() -> tuple[Scores, Scores]:
        engine = build_engine(
            EngineSection(), ModelSection(name=str(tiny_model), dtype="bfloat16", device="cpu"), tmp_path
        )
        empty = await engine.score(ScoreRequest(QUESTION, ("", ""), top_k=2))
        plain = await engine.score(ScoreRequest(QUESTION, ("a",)))
        await engine.close()
        return empty, plain

    empty, plain = asyncio.run(score())
    assert empty == Scores(((), ()), ((), ()), ((), ()))
    assert plain.top_ids == () and plain.top_logprobs == ()
