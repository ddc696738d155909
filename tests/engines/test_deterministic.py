"""Deterministic mode: a result does not depend on the other requests."""

import asyncio
from pathlib import Path

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.backends import build_engine
from tasks.engines.dtype import Dtype
from tasks.engines.protocol import Adapter, Completion, Engine, Request, Sampling, ScoreRequest, Scores

FIRST = (Message(role="user", content="What is the secret number?"),)


def crowd(first: Request) -> list[Request]:
    """Companions of all lengths and kinds around one request, which is in the middle."""
    others = [
        Request(
            (Message(role="user", content="tell me more " * number),),
            Sampling(max_tokens=4 + number, seed=number, temperature=0.5 + 0.1 * number),
            regex=r"\[[0-9]{1,3}\]" if number % 3 == 0 else None,
        )
        for number in range(9)
    ]
    return [*others[:5], first, *others[5:]]


async def alone_and_crowded(engine: Engine, request: Request) -> tuple[Completion, Completion]:
    alone = await engine.generate(request)
    answers = await asyncio.gather(*[engine.generate(one) for one in crowd(request)])
    return alone, answers[5]


async def scored_alone_and_crowded(engine: Engine, request: ScoreRequest) -> tuple[Scores, Scores]:
    alone = await engine.score(request)
    others = [ScoreRequest(request.messages, ("some text " * number, "end")) for number in range(1, 6)]
    answers = await asyncio.gather(*[engine.score(one) for one in [*others, request]])
    return alone, answers[-1]


def test_a_result_does_not_depend_on_other_requests_to_the_last_bit(
    tiny_model: Path, tiny_adapters: list[Adapter], tmp_path: Path
) -> None:
    async def check() -> None:
        section = EngineSection(deterministic=True, max_batch=8)
        engine = build_engine(section, ModelSection(name=str(tiny_model), dtype="bfloat16"), tmp_path)
        for adapter in (None, tiny_adapters[0]):
            request = Request(FIRST, Sampling(max_tokens=24, seed=3), adapter)
            alone, crowded = await alone_and_crowded(engine, request)
            assert alone == crowded
            scored = ScoreRequest(FIRST, ("I think ", "it is seven"), adapter, top_k=5)
            one, other = await scored_alone_and_crowded(engine, scored)
            assert one == other
        await engine.close()

    asyncio.run(check())


@pytest.mark.long
@pytest.mark.model
def test_a_result_of_the_real_model_does_not_depend_on_other_requests(
    real_model: Path, fast_dtype: Dtype, tmp_path: Path
) -> None:
    async def check() -> None:
        section = EngineSection(deterministic=True, max_batch=8)
        engine = build_engine(section, ModelSection(name=str(real_model), dtype=fast_dtype), tmp_path)
        alone, crowded = await alone_and_crowded(engine, Request(FIRST, Sampling(max_tokens=12, seed=1)))
        assert alone == crowded
        one, other = await scored_alone_and_crowded(engine, ScoreRequest(FIRST, ("I think ", "it is seven")))
        assert one == other
        await engine.close()

    asyncio.run(check())
