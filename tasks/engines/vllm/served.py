"""Client of a vLLM server that the program starts: the model in training, with adapters loaded at their first request,
or with one full checkpoint after another, each in a server of its own.

Prompts are rendered and tokenised here, not by the server, so they equal those of the in-process backends and of
training token by token.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import (
    APIConnectionError,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    OpenAIError,
)

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import RequestError
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.models import check_length, resolve_model
from tasks.engines.protocol import (
    FULL_CAPABILITIES,
    Adapter,
    Completion,
    EngineDied,
    Request,
    ScoreRequest,
    Scores,
    make_scores,
    pick_scores,
)
from tasks.engines.vllm.server_records import Server, server_dir
from tasks.engines.vllm.servers import acquire, answers, last_error
from tasks.engines.vllm.settings import read_completion
from tasks.engines.vllm.turns import Turns

REQUEST_SECONDS = 1800.0  # longer than any request, since max_batch bounds how many wait
BASE = "base"  # the server's name for the model without an adapter


@dataclass(frozen=True)
class _Held:
    """A server, this engine's lease on it, and the client that asks it."""

    server: Server
    lease: Path
    client: AsyncOpenAI


class ServedEngine:
    """An engine over such a server. Starting a server takes half a minute. Full checkpoints take turns, and each turn
    costs a start.

    Args:
        section: `serve`, and `options` as for vLLM in process.
        model: the model in training.
        cache_dir: parent of the servers' folders.

    Raises:
        EngineDied: the server does not start.
    """

    def __init__(self, section: EngineSection, model: ModelSection, cache_dir: Path) -> None:
        self.capabilities = FULL_CAPABILITIES
        self._section, self._model, self._cache_dir = section, model, cache_dir
        self._tokenizer = load_chat_tokenizer(resolve_model(model), model.revision)
        self._folder = server_dir(section, model, cache_dir)
        self._turns = Turns(self._change)
        self._held: _Held | None = None
        self._concurrency = asyncio.Semaphore(section.max_batch)
        self._loading: dict[str, asyncio.Lock] = {}
        self._loaded: set[str] = set()
        self._closed = False
        if model.train == "lora":
            self._acquire(None)

    async def generate(self, request: Request) -> Completion:
        """As the protocol."""
        sampling, thinking = request.sampling, request.thinking and request.regex is None
        prompt = self._tokenizer.prompt_ids(request.messages, tools=request.tools, thinking=thinking)
        check_length(self._model, len(prompt), sampling.max_tokens)
        extra: dict[str, Any] = {"stop_token_ids": self._tokenizer.end_ids, "return_token_ids": True}
        if request.regex:
            extra["structured_outputs"] = {"regex": request.regex}
        choice = await self._complete(
            request.adapter,
            prompt=prompt,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed % 2**63,
            stop=list(sampling.stop) or None,
            logprobs=0,
            extra_body=extra,
        )
        return read_completion(
            self._tokenizer,
            prompt,
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
            choice["text"],
            choice["finish_reason"],
            choice["stop_reason"],
        )

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol."""
        prompt = self._tokenizer.prompt_ids(request.messages, reasoning=request.reasoning)
        segments = self._tokenizer.segment_ids(request.segments)
        tokens = [token for segment in segments for token in segment]
        check_length(self._model, len(prompt), len(tokens) + 1)
        if not tokens:
            return make_scores(segments, (), () if request.top_k else None)
        choice = await self._complete(
            request.adapter,
            prompt=prompt + tokens,
            temperature=0.0,
            max_tokens=1,
            extra_body={"prompt_logprobs": request.top_k},
        )
        reported = (
            {int(token): float(entry["logprob"]) for token, entry in position.items()}
            for position in choice["prompt_logprobs"][-len(tokens) :]
        )
        return pick_scores(segments, reported, request.top_k)

    async def close(self) -> None:
        """As the protocol. Unloads the adapters that were loaded here; the server stays for others."""
        if self._closed:
            return
        self._closed = True
        try:
            for name in sorted(self._loaded):
                try:
                    await self._post("/unload_lora_adapter", {"lora_name": name})
                except APIStatusError:
                    continue  # another stage has unloaded it
        except APIConnectionError:
            self._loaded.clear()  # the server has ended
        finally:
            await self._let_go()

    async def _complete(self, adapter: Adapter | None, **fields: Any) -> dict[str, Any]:
        """The only choice of a completion, as the server sent it."""
        if self._closed:
            raise RequestError("the engine is closed")
        full = self._model.train == "full"
        if adapter is not None and adapter.is_lora == full:
            raise RequestError(
                f"{adapter.path} is not what model.train: {self._model.train} leaves; set model.train back"
            )
        try:
            async with self._turns.under(adapter) if full else nullcontext(), self._concurrency:
                name = BASE if full else await self._load(adapter)
                try:
                    answer = await self._client.completions.create(model=name, **fields)
                except NotFoundError:
                    if name == BASE:
                        raise
                    self._loaded.discard(name)  # another stage has unloaded it
                    answer = await self._client.completions.create(model=await self._load(adapter), **fields)
        except OpenAIError as error:
            raise await self._fault(error) from None
        except RuntimeError as error:  # the client library's, when it is closed during a request
            if not self._closed:
                raise
            raise RequestError("the engine is closed") from error
        return dict(answer.model_dump()["choices"][0])

    async def _change(self, checkpoint: Adapter | None) -> None:
        """Have a server with the weights of a full checkpoint, or with the model's own, in place of the one before."""
        await self._let_go()
        await asyncio.to_thread(self._acquire, checkpoint)
        if self._closed:
            await self._let_go()
            raise RequestError("the engine is closed")

    def _acquire(self, checkpoint: Adapter | None) -> None:
        server, lease = acquire(self._section, self._model, self._cache_dir, checkpoint)
        client = AsyncOpenAI(
            base_url=f"{server.root_url}/v1",
            api_key=server.key,
            timeout=REQUEST_SECONDS,
            max_retries=2,  # the server may have closed a connection that was kept open
            http_client=DefaultAsyncHttpxClient(trust_env=False),  # never through http_proxy
        )
        self._held = _Held(server, lease, client)
        if self._closed:  # meanwhile; nobody may await this call any more
            lease.unlink(missing_ok=True)

    async def _let_go(self) -> None:
        """Give up the lease on the server, where there is one."""
        if self._held is not None:
            held, self._held = self._held, None
            held.lease.unlink(missing_ok=True)
            await held.client.close()

    @property
    def _client(self) -> AsyncOpenAI:
        if self._held is None:
            raise RequestError("the engine is closed")
        return self._held.client

    async def _load(self, adapter: Adapter | None) -> str:
        """The server's name for an adapter or the base model; loads an adapter at its first request."""
        if adapter is None:
            return BASE
        name = adapter.digest
        async with self._loading.setdefault(name, asyncio.Lock()):
            if name not in self._loaded:
                try:
                    await self._post(
                        "/load_lora_adapter", {"lora_name": name, "lora_path": str(adapter.path.resolve())}
                    )
                except APIStatusError as error:
                    if "already been loaded" not in str(error):
                        raise
                self._loaded.add(name)
        return name

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        await self._client.post(path, body=body, cast_to=str)

    async def _fault(self, error: OpenAIError) -> Exception:
        """A request's own error, or EngineDied when the server no longer answers."""
        if self._closed or self._held is None:
            return RequestError("the engine is closed")
        server = self._held.server
        lost = isinstance(error, APIConnectionError) or (
            isinstance(error, APIStatusError) and error.status_code >= 500
        )
        if not lost or (await asyncio.to_thread(answers, server)):
            return RequestError(f"the vLLM server refused or failed this request: {error}")
        return EngineDied(
            f"the vLLM server at {server.root_url} has ended: {last_error(self._folder)}; its log is "
            f"{self._folder / 'server.log'}. Run the stage again: it starts the server anew and goes on from the "
            "requests that were answered"
        )
