"""Scoring with the transformers backend: a prompt that several completions answer is computed once."""

import asyncio
from pathlib import Path

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.backends import build_engine
from tasks.engines.local.engine import TransformersEngine
from tasks.engines.protocol import ScoreRequest, Scores


def asked(count: int, answers: int) -> list[ScoreRequest]:
    """Requests of some prompts of different lengths, each with several answers of different lengths."""
    return [
        ScoreRequest(
            (Message(role="user", content=f"Go {'left ' * number}or right?"),), ("Go:", " on" * (1 + n))
        )
        for number in range(count)
        for n in range(answers)
    ]


def scored(model: Path, cache: Path, *waves: list[ScoreRequest]) -> tuple[list[Scores], int]:
    """The scores of requests, wave after wave, and how many tokens the model read for them."""
    read = 0

    async def score() -> list[Scores]:
        nonlocal read
        section = ModelSection(name=str(model), dtype="float32", device="cpu")
        engine = build_engine(EngineSection(), section, cache)
        assert isinstance(engine, TransformersEngine)
        await engine.score(waves[0][0])  # loads the model

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
    together, read_together = scored(tiny_model, tmp_path, requests)
    alone, read_alone = scored(tiny_model, tmp_path, *([request] for request in requests))
    for one, other in zip(together, alone, strict=True):
        for segment, expected in zip(one.segments, other.segments, strict=True):
            assert segment == pytest.approx(expected, abs=1e-4)
    assert read_together < read_alone / 2
