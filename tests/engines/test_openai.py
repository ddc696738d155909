"""The openai backend against a real server on this machine: a small application in front of a real engine."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from openai import Timeout

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message, RequestError, ToolCall
from tasks.chat.response_parser import Call, read_calls, split_reasoning
from tasks.engines import openai
from tasks.engines.backends import EngineConfigError, build_engine, check_engine
from tasks.engines.openai import UNANSWERED, OpenAIEngine
from tasks.engines.protocol import Adapter, Completion, EngineDied, Request, Sampling, ScoreRequest
from tests.support.broken_http import serving
from tests.support.local_http import answering
from tests.support.openai_server import KEY, served

QUESTION = (Message(role="user", content="Name a number."),)


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Address of a running server, and the requests it has seen."""
    seen: list[dict[str, Any]] = []
    engine = build_engine(
        EngineSection(max_batch=8), ModelSection(name=str(tiny_model), dtype="bfloat16"), tmp_path
    )
    with served(engine, tiny_model, seen) as address:
        yield address, seen
    asyncio.run(engine.close())


def section(url: str, **options: Any) -> EngineSection:
    return EngineSection(
        backend="openai", base_url=url, model="tiny", api_key_env="TEST_KEY", max_batch=4, options=options
    )


@pytest.mark.slow
def test_a_served_model_answers_like_a_local_one(
    server: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, seen = server
    monkeypatch.setenv("TEST_KEY", KEY)

    async def checks() -> None:
        engine = build_engine(section(url, server="vllm", extra_body={"top_k": 7}), ModelSection(), tmp_path)
        requests = [Request(QUESTION, Sampling(max_tokens=8, seed=seed)) for seed in range(6)]
        answers = await asyncio.gather(*[engine.generate(request) for request in requests])
        assert len({answer.text for answer in answers}) == 6
        assert all(answer.completion_tokens > 0 and answer.prompt_tokens > 0 for answer in answers)
        held = await engine.generate(Request(QUESTION, Sampling(max_tokens=8), regex=r"\[[0-9]\]"))
        assert held.text[0] == "[" and held.finish_reason == "stop"
        whole = await engine.generate(requests[0])
        stop = whole.text[3:6]
        cut = await engine.generate(Request(QUESTION, Sampling(max_tokens=8, stop=(stop,))))
        assert cut.text == whole.text.partition(stop)[0]
        scores = await engine.score(ScoreRequest(QUESTION, ("a b", "c")))
        assert [len(segment) for segment in scores.segments] == [2, 1]
        assert all(value < 0 for segment in scores.segments for value in segment)
        top = await engine.score(ScoreRequest(QUESTION, ("a b", "c"), top_k=2))
        assert top.segments == scores.segments and scores.top_ids == ()
        assert top.top_ids == (((0, 1), (0, 1)), ((0, 1),))
        assert top.top_logprobs == (((0.0, -1.0), (0.0, -1.0)), ((0.0, -1.0),))
        await engine.close()

    asyncio.run(checks())
    assert {request["authorization"] for request in seen} == {f"Bearer {KEY}"}
    assert all(request["body"]["top_k"] == 7 for request in seen)


@pytest.mark.slow
def test_what_a_server_has_taken_apart_is_put_together_and_is_told_whether_to_think(
    server: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, seen = server
    monkeypatch.setenv("TEST_KEY", KEY)
    call = ToolCall(id="1", type="function", function={"name": "look", "arguments": {"far": 2}})
    chat = (
        *QUESTION,
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="user", content="think"),
    )
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }

    async def check() -> None:
        for options in ({"server": "vllm"}, {}):
            engine = build_engine(section(url, **options), ModelSection(), tmp_path)
            answer = await engine.generate(Request(chat, Sampling(), thinking=True, tools=(tool,)))
            await engine.close()
            thought, said = split_reasoning(answer.text)
            assert thought == "hm" and answer.finish_reason == "stop"
            assert read_calls(said) == ("", (Call("look", {"far": 3}),))

    asyncio.run(check())
    told, untold = (request["body"] for request in seen)
    assert told["chat_template_kwargs"] == {"enable_thinking": True} and "chat_template_kwargs" not in untold
    assert told["tools"] == [tool]
    assert told["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"far": 2}'


@pytest.mark.slow
def test_a_refused_request_fails_alone_and_never_shows_the_key(
    server: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, _ = server
    monkeypatch.setenv("TEST_KEY", KEY)

    async def checks() -> None:
        engine = build_engine(section(url), ModelSection(), tmp_path)
        bad = Request((Message(role="user", content="fail"),), Sampling())
        good = Request(QUESTION, Sampling(max_tokens=4))
        refused, answered = await asyncio.gather(
            engine.generate(bad), engine.generate(good), return_exceptions=True
        )
        assert isinstance(refused, RequestError) and isinstance(answered, Completion)
        assert "refused, key was ***" in str(refused) and KEY not in str(refused)
        with pytest.raises(RequestError, match="regex"):
            await engine.generate(Request(QUESTION, Sampling(), regex="a"))
        with pytest.raises(RequestError, match="adapter"):
            await engine.generate(Request(QUESTION, Sampling(), adapter=Adapter("v", tmp_path, "d")))
        with pytest.raises(RequestError, match=r"options\.server"):
            await engine.score(ScoreRequest(QUESTION, ("a",)))
        await engine.close()

    asyncio.run(checks())


@pytest.mark.parametrize(
    ("status", "dead"), [(500, True), (503, True), (429, True), (400, False), (422, False)]
)
def test_a_server_without_answers_is_asked_no_further_and_one_that_refuses_is(
    status: int, dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)

    async def ask(url: str) -> list[BaseException | Completion]:
        engine = OpenAIEngine(section(f"{url}/v1", max_retries=0))
        request = Request(QUESTION, Sampling())
        said = await asyncio.gather(*[engine.generate(request) for _ in range(30)], return_exceptions=True)
        await engine.close()
        return said

    with answering(lambda request: (status, b"{}")) as local:
        said = asyncio.run(ask(local.url))
    assert UNANSWERED <= sum(type(answer) is RequestError for answer in said) == len(local.asked)
    assert len(local.asked) < UNANSWERED + 4 if dead else len(local.asked) == 30, "four are under way at once"
    assert sum(isinstance(answer, EngineDied) for answer in said) == 30 - len(local.asked)


def test_a_host_that_is_not_there_is_waited_for_less_long_than_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    waits = OpenAIEngine(section("http://127.0.0.1:1/v1", timeout_s=77))._client.timeout
    assert isinstance(waits, Timeout) and (waits.read, waits.connect) == (77, 10)


def test_an_answer_between_failures_keeps_the_requests_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    message = {"role": "assistant", "content": "4"}
    body = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode()
    numbers = count(1)

    async def ask(url: str) -> None:
        engine = OpenAIEngine(section(f"{url}/v1", max_retries=0))
        for _ in range(20):
            with suppress(RequestError):
                await engine.generate(Request(QUESTION, Sampling()))
        await engine.close()

    with answering(lambda request: (500, b"{}") if next(numbers) % UNANSWERED else (200, body)) as local:
        asyncio.run(ask(local.url))
    assert len(local.asked) == 20


REPLIES: dict[str, Any] = {
    "no choices": {"object": "chat.completion"},
    "empty choices": {"choices": []},
    "null message": {"choices": [{"index": 0, "finish_reason": "stop", "message": None}]},
    "content of another type": {
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": [1]}}]
    },
    "no finish_reason": {"choices": [{"index": 0, "message": {"content": "half"}}]},
    "usage of another type": {
        "choices": [{"finish_reason": "stop", "message": {"content": "a"}}],
        "usage": "many",
    },
    "a number": 3,
    "HTML": "<html><body>Bad gateway</body></html>",
    "cut JSON": '{"choices": [{"ind',
    "deep JSON": "[" * 100_000,
}


@pytest.mark.parametrize("kind", REPLIES)
def test_a_malformed_reply_is_asked_for_again_and_then_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr(openai, "RETRY_SECONDS", 0.001)
    bad = REPLIES[kind]
    good = {
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "7"}}]
    }

    async def checks(url: str) -> None:
        engine = openai.OpenAIEngine(section(url, max_retries=1))
        assert (await engine.generate(Request(QUESTION, Sampling()))).text == "7"
        with pytest.raises(RequestError, match="asked 2 times"):
            await engine.generate(Request(QUESTION, Sampling()))
        await engine.close()

    replies = [reply if isinstance(reply, str) else json.dumps(reply) for reply in (bad, good, bad, bad)]
    with answering(lambda request: (200, replies.pop(0).encode())) as local:
        asyncio.run(checks(f"{local.url}/v1"))


def test_what_the_library_asks_again_is_counted_and_a_failure_has_a_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)

    async def check(url: str) -> None:
        engine = OpenAIEngine(section(f"{url}/v1", max_retries=1))
        with pytest.raises(RequestError) as failed:
            await engine.generate(Request(QUESTION, Sampling()))
        await engine.close()
        assert failed.value.kind == "InternalServerError"
        assert engine.faults == {"no answer, asked again": 1}

    with answering(lambda request: (500, b"{}")) as local:
        asyncio.run(check(local.url))


@pytest.mark.parametrize("fault", ["hang", "slow drip", "cut body", "reset", "429 with Retry-After"])
def test_a_server_that_breaks_once_is_asked_again(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr(openai, "RETRY_SECONDS", 0.001)

    async def ask(url: str) -> str:
        engine = OpenAIEngine(section(url, max_retries=8, timeout_s=0.5))
        answer = await engine.generate(Request(QUESTION, Sampling()))
        await engine.close()
        return answer.text

    with serving(fault) as server:
        server.broken = 1
        assert "[5]" in asyncio.run(ask(f"http://127.0.0.1:{server.port}/v1"))
    assert len(server.asked) >= 2


def test_a_server_whose_answers_never_end_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)

    async def ask(url: str) -> list[BaseException | Completion]:
        engine = OpenAIEngine(section(url, max_retries=0, timeout_s=0.2))
        requests = [engine.generate(Request(QUESTION, Sampling(seed=seed))) for seed in range(12)]
        said = await asyncio.gather(*requests, return_exceptions=True)
        await engine.close()
        return said

    with serving("slow drip") as server:
        server.broken = 99
        said = asyncio.run(ask(f"http://127.0.0.1:{server.port}/v1"))
    assert all("no whole answer in 0.2 s" in str(answer) for answer in said[:UNANSWERED])
    assert isinstance(said[-1], EngineDied) and len(server.asked) < UNANSWERED + 4


def test_an_unset_key_is_named_and_unknown_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY", raising=False)
    with pytest.raises(EngineConfigError, match="TEST_KEY is not set"):
        check_engine(section("http://127.0.0.1:1/v1"), ModelSection())
    monkeypatch.setenv("TEST_KEY", KEY)
    with pytest.raises(EngineConfigError, match="temperature") as refused:
        check_engine(section("http://127.0.0.1:1/v1", temperature=1), ModelSection())
    assert KEY not in str(refused.value)
