"""The openai backend against a real server on this machine: a small application in front of a real engine."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from schemas.config import EngineSection, ModelSection
from tasks.engines import EngineConfigError, build_engine, check_engine
from tasks.engines.base import (
    Adapter,
    Completion,
    Engine,
    EngineError,
    Message,
    Request,
    Sampling,
    ScoreRequest,
    ToolCall,
)
from tasks.engines.chat import load_chat_tokenizer
from tasks.engines.replies import Call, read_calls, split_reasoning

KEY = "sk-secret-of-this-test"
QUESTION = (Message(role="user", content="Name a number."),)


def application(engine: Engine, model: Path, seen: list[dict[str, Any]]) -> FastAPI:
    """What of an OpenAI-compatible vLLM server the backend uses."""
    app, tokenizer = FastAPI(), load_chat_tokenizer(model)

    @app.post("/v1/chat/completions")
    async def chat(http: HttpRequest) -> Any:
        body = await http.json()
        seen.append({"body": body, "authorization": http.headers.get("authorization")})
        if body["messages"][-1]["content"] == "fail":
            return JSONResponse({"error": {"message": f"refused, key was {KEY}"}}, status_code=400)
        if body["messages"][-1]["content"] == "think":
            return _taken_apart(body["model"])
        sampling = Sampling(
            body["temperature"],
            body["top_p"],
            body["max_tokens"],
            body["seed"],
            tuple(body.get("stop") or ()),
        )
        regex = body.get("structured_outputs", {}).get("regex")
        answer = await engine.generate(Request(tuple(body["messages"]), sampling, regex=regex))
        return {
            "id": "1", "object": "chat.completion", "created": 0, "model": body["model"],
            "choices": [{
                "index": 0, "finish_reason": answer.finish_reason,
                "message": {"role": "assistant", "content": answer.text},
            }],
            "usage": {
                "prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens,
                "total_tokens": answer.prompt_tokens + answer.completion_tokens,
            },
        }  # fmt: skip

    @app.post("/tokenize")
    async def tokenize(http: HttpRequest) -> Any:
        body = await http.json()
        ids = (
            tokenizer.prompt_ids(body["messages"])
            if "messages" in body
            else tokenizer.segment_ids([body["prompt"]])[0]
        )
        return {"tokens": ids}

    @app.post("/v1/completions")
    async def complete(http: HttpRequest) -> Any:
        body = await http.json()
        likely = range(body["prompt_logprobs"])  # the lower an id, the likelier; the given token comes on top
        reported = [None] + [
            {str(i): {"logprob": -float(i)} for i in (token, *likely)} for token in body["prompt"][1:]
        ]
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "length",
            "logprobs": None,
            "prompt_logprobs": reported,
        }
        return {
            "id": "1",
            "object": "text_completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
        }

    return app


def _taken_apart(model: str) -> dict[str, Any]:
    """What a server says that reads thought and calls out of the text itself."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"far": 3}'}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    return {
        "id": "1", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
    }  # fmt: skip


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Address of a running server, and the requests it has seen."""
    seen: list[dict[str, Any]] = []
    engine = build_engine(EngineSection(max_batch=8), ModelSection(name=str(tiny_model)), tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uvicorn_server = uvicorn.Server(
        uvicorn.Config(
            application(engine, tiny_model, seen), host="127.0.0.1", port=port, log_level="warning"
        )
    )
    thread = threading.Thread(target=uvicorn_server.run, daemon=True)
    thread.start()
    while not uvicorn_server.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{port}/v1", seen
    uvicorn_server.should_exit = True
    thread.join()
    asyncio.run(engine.close())


def section(url: str, **options: Any) -> EngineSection:
    return EngineSection(
        backend="openai", base_url=url, model="tiny", api_key_env="TEST_KEY", max_batch=4, options=options
    )


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
        assert isinstance(refused, EngineError) and isinstance(answered, Completion)
        assert "refused, key was ***" in str(refused) and KEY not in str(refused)
        with pytest.raises(EngineError, match="regex"):
            await engine.generate(Request(QUESTION, Sampling(), regex="a"))
        with pytest.raises(EngineError, match="adapter"):
            await engine.generate(Request(QUESTION, Sampling(), adapter=Adapter("v", tmp_path, "d")))
        with pytest.raises(EngineError, match=r"options\.server"):
            await engine.score(ScoreRequest(QUESTION, ("a",)))
        await engine.close()

    asyncio.run(checks())


def test_an_unset_key_is_named_and_unknown_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY", raising=False)
    with pytest.raises(EngineConfigError, match="TEST_KEY is not set"):
        check_engine(section("http://127.0.0.1:1/v1"), ModelSection())
    monkeypatch.setenv("TEST_KEY", KEY)
    with pytest.raises(EngineConfigError, match="temperature") as refused:
        check_engine(section("http://127.0.0.1:1/v1", temperature=1), ModelSection())
    assert KEY not in str(refused.value)
