"""Scoring with the transformers backend: a prompt that several completions answer is computed once."""

import asyncio
from pathlib import Path

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.backends import build_engine
from tasks.engines.local.engine import TransformersEngine
from tasks.engines.protocol import Completion, Request, Sampling, ScoreRequest, Scores


def asked(count: int, answers: int) -> list[ScoreRequest]:
    """Requests of some prompts of different lengths, each with several answers of different lengths."""
    return [
        ScoreRequest(
            (Message(role="user", content=f"Go {'left ' * number}or right?"),), ("Go:", " on" * (1 + n))
        )
        for number in range(count)
        for n in range(answers)
    ]


FIRST = ScoreRequest((Message(role="user", content="hello"),), ("Go:",))


def scored(
    model: Path, cache: Path, *waves: list[ScoreRequest], continuous: bool = True
) -> tuple[list[Scores], int]:
    """The scores of requests, wave after wave, and how many tokens the model read for them."""
    read = 0

    async def score() -> list[Scores]:
        nonlocal read
        section = ModelSection(name=str(model), dtype="float32", device="cpu")
        engine = build_engine(EngineSection(continuous=continuous), section, cache)
        assert isinstance(engine, TransformersEngine)
        await engine.score(FIRST)  # loads the model

        def count(module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            nonlocal read
            read += kwargs["input_ids"].numel()  # type: ignore[attr-defined]

        assert engine._pool is not None
        with engine._pool.under(None) as loaded:
            loaded.register_forward_pre_hook(count, with_kwargs=True)
        found = [s for wave in waves for s in await asyncio.gather(*map(engine.score, wave))]
        await engine.close()
        return found

    return asyncio.run(score()), read


@pytest.mark.slow
def test_a_prompt_with_several_answers_is_read_once_and_scores_the_same(
    tiny_model: Path, tmp_path: Path
) -> None:
    requests = asked(5, 4)
    one_by_one = [[request] for request in requests]
    alone, read_alone = scored(tiny_model, tmp_path, *one_by_one, continuous=False)  # which keeps no prefix
    for waves in ([requests], one_by_one):
        together, read_together = scored(tiny_model, tmp_path, *waves)
        for one, other in zip(together, alone, strict=True):
            for segment, expected in zip(one.segments, other.segments, strict=True):
                assert segment == pytest.approx(expected, abs=1e-4)
        assert read_together < read_alone / 2


@pytest.mark.slow
def test_a_scored_prompt_is_not_read_again_to_be_answered(tiny_model: Path, tmp_path: Path) -> None:
    read: list[int] = []

    async def ask(*, score: bool) -> Completion:
        engine = build_engine(
            EngineSection(), ModelSection(name=str(tiny_model), dtype="float32", device="cpu"), tmp_path
        )
        assert isinstance(engine, TransformersEngine) and engine._pool is not None
        messages = (Message(role="user", content="Go left or right, or go back? " * 3),)
        if score:
            await engine.score(ScoreRequest(messages, ("Go:", " on")))

        def count(module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            read.append(kwargs["input_ids"].numel())  # type: ignore[attr-defined]

        with engine._pool.under(None) as loaded:
            loaded.register_forward_pre_hook(count, with_kwargs=True)
        answer = await engine.generate(Request(messages, Sampling(max_tokens=1, seed=3)))
        await engine.close()
        return answer

    first = asyncio.run(ask(score=False))
    whole = sum(read)
    read.clear()
    assert asyncio.run(ask(score=True)) == first
    assert read == [1] and whole > 20
