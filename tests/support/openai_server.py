"""A server that speaks as much of OpenAI's and vLLM's API as the openai backend uses, in front of any engine."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.protocol import Engine, Request, Sampling

KEY = "sk-secret-of-this-test"


@contextmanager
def served(engine: Engine, model: Path, seen: list[dict[str, Any]]) -> Iterator[str]:
    """The address of a running server.

    Args:
        engine: answers.
        model: whose tokenizer counts.
        seen: gets every chat request's body and key.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = uvicorn.Config(
        application(engine, model, seen), host="127.0.0.1", port=port, log_level="warning"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join()


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
