"""What every backend does alike, each checked against what it declares."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message, RequestError
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.backends import build_engine, declared_capabilities
from tasks.engines.dtype import Dtype
from tasks.engines.protocol import Adapter, Completion, Engine, EngineDied, Request, Sampling, ScoreRequest
from tests.support.own_server import OwnServer
from tests.support.processes import engine_cores

QUESTION = (Message(role="system", content="Be brief."), Message(role="user", content="Name a number."))


@dataclass(frozen=True)
class Backend:
    """One backend under test: how to build it, and adapters that fit its model."""

    section: EngineSection
    model: ModelSection
    adapters: list[Adapter]
    cache_dir: Path

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        engine = build_engine(self.section, self.model, self.cache_dir)
        try:
            yield engine
        finally:
            await engine.close()

    def run(self, check: Callable[[Engine], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with self.running() as engine:
                await check(engine)

        asyncio.run(whole())


def section_of(name: str) -> EngineSection:
    if name == "scripted":
        return EngineSection(backend="scripted", rules="tests.support.chatter_rules:chatter")
    backend: Literal["vllm", "transformers"] = "vllm" if name == "vllm" else "transformers"
    return EngineSection(
        backend=backend,
        max_batch=8,
        merge_adapters=name.endswith("merged"),
        continuous=not name.endswith("batches"),
        deterministic=name.endswith("deterministic"),
    )


@pytest.fixture(
    params=[
        "scripted",
        "tiny",
        "tiny-merged",
        "tiny-batches",
        "tiny-deterministic",
        pytest.param("real", marks=[pytest.mark.model, pytest.mark.long]),
        pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.long]),
        pytest.param("served", marks=pytest.mark.vllm),
        pytest.param("openai", marks=pytest.mark.vllm),
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    name = request.param
    if name in ("served", "openai"):
        server: OwnServer = request.getfixturevalue("own_server")
        section = server.section
        if name == "openai":  # the same server, as one that the program has not started
            url, key = server.address()
            monkeypatch.setenv("TEST_KEY", key)
            options = {"server": "vllm"}
            section = EngineSection(
                backend="openai", base_url=url, model="base", api_key_env="TEST_KEY", options=options
            )
        return Backend(section, server.model, [request.getfixturevalue("real_adapter")], server.cache_dir)
    if name == "vllm":
        pytest.importorskip("vllm")
    if name in ("real", "vllm"):
        folder, adapters = request.getfixturevalue("real_model"), [request.getfixturevalue("real_adapter")]
    else:
        folder, adapters = request.getfixturevalue("tiny_model"), request.getfixturevalue("tiny_adapters")
    dtype: Dtype = request.getfixturevalue("fast_dtype")
    return Backend(section_of(name), ModelSection(name=str(folder), dtype=dtype), adapters, tmp_path)


def ask(max_tokens: int = 12, seed: int = 0, **fields: object) -> Request:
    sampling = {"temperature": 1.0, "stop": ()} | {
        key: fields.pop(key) for key in ("temperature", "top_p", "stop") if key in fields
    }
    return Request(QUESTION, Sampling(max_tokens=max_tokens, seed=seed, **sampling), **fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_backend_behaves_as_the_protocol_says(backend: Backend) -> None:
    """One engine for all checks: a start of vLLM takes half a minute."""

    async def checks(engine: Engine) -> None:
        assert engine.capabilities == declared_capabilities(backend.section)
        await prompts_follow_the_chat_template(engine, backend)
        await same_seed_same_text(engine)
        await adapters_speak(engine, backend)
        await regex_holds(engine)
        await stop_strings_end_the_text(engine, backend.section)
        await logprobs_are_the_scores(engine, backend)
        await the_most_likely_tokens_come_with_the_scores(engine, backend)
        await one_error_leaves_other_requests_alone(engine, backend.section)
        await cancellations_leave_other_requests_alone(engine, backend.section)
        if backend.section.backend == "vllm":
            await many_scores_beside_generation_are_those_of_one_alone(engine, backend.adapters[0])
            await a_killed_engine_fails_the_stage_not_one_row_after_the_other(engine)

    backend.run(checks)


async def prompts_follow_the_chat_template(engine: Engine, backend: Backend) -> None:
    if backend.section.backend == "scripted":
        return
    tokenizer = load_chat_tokenizer(backend.model.name)
    answer = await engine.generate(ask(temperature=0.0))
    assert answer.prompt_tokens == len(tokenizer.prompt_ids(QUESTION))
    if engine.capabilities.scoring:  # what it writes is what the template's prompt makes likeliest
        likely, other = [
            await engine.score(ScoreRequest(messages, (answer.text,)))
            for messages in (QUESTION, QUESTION[1:])
        ]
        assert sum(likely.segments[0]) > sum(other.segments[0])


async def same_seed_same_text(engine: Engine) -> None:
    alone = await engine.generate(ask(seed=3))
    assert (await engine.generate(ask(seed=3))).text == alone.text
    texts = {
        answer.text for answer in await asyncio.gather(*[engine.generate(ask(seed=s)) for s in range(6)])
    }
    assert len(texts) >= 5
    assert alone.prompt_tokens > 0 and alone.completion_tokens > 0


async def adapters_speak(engine: Engine, backend: Backend) -> None:
    """Five adapters are more than stay loaded; each gives its own text, in whatever order."""
    if not engine.capabilities.adapters and backend.section.backend == "openai":
        with pytest.raises(RequestError, match="an engine that takes adapters"):
            await engine.generate(ask(adapter=backend.adapters[0]))
        return
    versions = [None, *backend.adapters]
    greedy = [ask(temperature=0.0, adapter=adapter) for adapter in versions]
    together = await asyncio.gather(*[engine.generate(one) for one in greedy])
    assert len({answer.text for answer in together}) == len(versions)
    again = [await engine.generate(one) for one in reversed(greedy)]
    sure = (
        None if backend.section.backend in ("transformers", "scripted") else 10
    )  # characters; its rounding depends on companions
    assert [answer.text[:sure] for answer in reversed(again)] == [answer.text[:sure] for answer in together]


async def regex_holds(engine: Engine) -> None:
    regex = r"\[[0-9]{1,2}\]"
    requests = [ask(), *[ask(regex=regex, seed=seed) for seed in range(3)]]
    free, *held = await asyncio.gather(*[engine.generate(request) for request in requests])
    assert all(re.fullmatch(regex, answer.text) and answer.finish_reason == "stop" for answer in held)
    assert not re.fullmatch(regex, free.text)


async def stop_strings_end_the_text(engine: Engine, section: EngineSection) -> None:
    whole = await engine.generate(ask(max_tokens=24, seed=1))
    stop = "END" if section.backend == "scripted" else whole.text[len(whole.text) // 2 :][:3]
    cut = await engine.generate(ask(max_tokens=24, seed=1, stop=(stop, "never written")))
    assert cut.text == whole.text.partition(stop)[0]
    assert cut.finish_reason == "stop"


async def logprobs_are_the_scores(engine: Engine, backend: Backend) -> None:
    if not engine.capabilities.token_ids:
        return
    tokenizer = load_chat_tokenizer(backend.model.name)
    for under in (None, backend.adapters[0]):
        requests = [ask(max_tokens=3, seed=seed, temperature=0.7, adapter=under) for seed in range(20)]
        answers = await asyncio.gather(*[engine.generate(request) for request in requests])
        # not every text that is sampled gives its own tokens again
        same = [
            answer for answer in answers if [list(answer.token_ids)] == tokenizer.segment_ids([answer.text])
        ]
        assert same
        for answer in same[:4]:
            scores = await engine.score(ScoreRequest(QUESTION, (answer.text, "", " and so on"), under))
            assert [len(segment) for segment in scores.segments][:2] == [len(answer.token_ids), 0]
            assert scores.segments[2]
            assert scores.segments[0] == pytest.approx(answer.logprobs, abs=0.2)  # bfloat16, in other shapes


async def the_most_likely_tokens_come_with_the_scores(engine: Engine, backend: Backend) -> None:
    if not engine.capabilities.topk:
        return
    under = backend.adapters[0] if engine.capabilities.adapters else None
    greedy = await engine.generate(ask(max_tokens=1, temperature=0.0, adapter=under))
    plain = await engine.score(ScoreRequest(QUESTION, ("I think", "", " seven"), under))
    assert plain.top_ids == plain.top_logprobs == ()
    for k in (1, 30):
        scores = await engine.score(ScoreRequest(QUESTION, ("I think", "", " seven"), under, top_k=k))
        assert [len(s) for s in scores.top_ids] == [len(s) for s in scores.segments]
        if engine.capabilities.token_ids and k > 1:
            # Of tokens that bfloat16 can't tell apart either may come first: two steps of it are .0625 here.
            chances = dict(zip(scores.top_ids[0][0], scores.top_logprobs[0][0], strict=True))
            assert chances[greedy.token_ids[0]] >= max(chances.values()) - 0.07
        for logprobs, plainly in zip(scores.segments, plain.segments, strict=True):
            assert logprobs == pytest.approx(plainly, abs=0.2)  # bfloat16, in other shapes
        for ids, values in zip(sum(scores.top_ids, ()), sum(scores.top_logprobs, ()), strict=True):
            assert len(set(ids)) == len(values) == k
            assert list(values) == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) <= 1.001
    segments = load_chat_tokenizer(backend.model.name).segment_ids(("I think", "", " seven"))
    tokens = [token for segment in segments for token in segment]
    given = zip(
        tokens, sum(scores.segments, ()), sum(scores.top_ids, ()), sum(scores.top_logprobs, ()), strict=True
    )
    for token, logprob, ids, values in given:
        if token in ids:
            assert values[ids.index(token)] == logprob
        else:
            assert logprob <= values[-1]


async def one_error_leaves_other_requests_alone(engine: Engine, section: EngineSection) -> None:
    if section.backend == "scripted":
        broken = Request((Message(role="user", content="fail"),), Sampling())
    else:
        broken = ask(max_tokens=100_000)
    good, bad, other = await asyncio.gather(
        engine.generate(ask(seed=1)),
        engine.generate(broken),
        engine.generate(ask(seed=2)),
        return_exceptions=True,
    )
    assert isinstance(bad, RequestError)
    assert isinstance(good, Completion) and isinstance(other, Completion)
    if section.backend != "scripted":
        assert "100000" in str(bad) and ("model.context_length" in str(bad) or section.base_url)
        with pytest.raises(RequestError, match=r"[Ll]ook"):
            await engine.generate(ask(regex="(?<!a)b"))


async def cancellations_leave_other_requests_alone(engine: Engine, section: EngineSection) -> None:
    """One that has not begun, and as many as are computed at once: all but the last in the middle of their texts."""
    tasks = [asyncio.create_task(engine.generate(ask(seed=s))) for s in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, Completion) for i, result in enumerate(results) if i != 1] == [True] * 3
    if section.backend == "scripted":  # its answers are there at once
        return
    endless = [asyncio.create_task(engine.generate(ask(seed=s, max_tokens=1500))) for s in range(7)]
    await engine.generate(
        ask(seed=7, max_tokens=1)
    )  # the eighth place; its end shows that the others have begun
    endless.append(asyncio.create_task(engine.generate(ask(seed=7, max_tokens=1500))))
    other = asyncio.create_task(engine.generate(ask(seed=8, max_tokens=24)))
    await asyncio.sleep(0)
    for task in endless:
        task.cancel()
    assert isinstance(await other, Completion)
    results = await asyncio.gather(*endless, return_exceptions=True)
    assert not any(isinstance(result, Exception) for result in results)  # cancelled, or at its end before
    assert (await engine.generate(ask(seed=1))).completion_tokens > 0


async def many_scores_beside_generation_are_those_of_one_alone(engine: Engine, adapter: Adapter) -> None:
    def messages(number: int) -> tuple[Message, ...]:
        return (
            Message(role="user", content=f"Guess a number. {'It is small. ' * (number % 7)}Turn {number}"),
        )

    requests = [
        ScoreRequest(messages(n), ("Future:", f" found after {n} turns"), (None, adapter)[n % 2])
        for n in range(12)
    ]
    writing = [engine.generate(Request(messages(n), Sampling(max_tokens=24, seed=n))) for n in range(12)]
    scoring = [engine.score(request) for request in requests]
    together, _ = await asyncio.gather(asyncio.gather(*scoring), asyncio.gather(*writing))
    for request, scores in zip(requests[:4], together, strict=False):
        alone = await engine.score(request)
        for one, other in zip(alone.segments, scores.segments, strict=True):
            assert one == pytest.approx(other, abs=0.3)  # bfloat16, in another batch


async def a_killed_engine_fails_the_stage_not_one_row_after_the_other(engine: Engine) -> None:
    asked = asyncio.create_task(engine.generate(ask(max_tokens=1500, regex="[0-9]{400}")))
    await engine.generate(ask(max_tokens=1))  # came later, so the endless one is under way
    for core in engine_cores():
        core.kill()
    with pytest.raises(EngineDied, match="Run the stage again"):
        await asked


@pytest.mark.slow
def test_a_closed_engine_says_so_and_closes_twice(backend: Backend) -> None:
    if backend.section.backend != "transformers" and backend.section.serve is None:
        pytest.skip("scripted engines hold nothing; vLLM's start is too long for this")

    async def checks(engine: Engine) -> None:
        running = asyncio.create_task(engine.generate(ask(max_tokens=1500, regex="[0-9]{1400}")))
        await asyncio.sleep(0)  # it is asked now; to wait for more would depend on how fast others answer
        await engine.close()
        with pytest.raises(RequestError, match="closed"):
            await running
        with pytest.raises(RequestError, match="closed"):
            await engine.generate(ask())

    backend.run(checks)
