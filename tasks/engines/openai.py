"""Client of any OpenAI-compatible server, such as `vllm serve` or a hosted model. Bounds the concurrent requests.

The server encodes contents, perhaps with special tokens. So names of tokens that begin or end turns are escaped.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import unquote

from openai import (
    APIConnectionError,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    OpenAIError,
    Timeout,
)

from schemas.config import EngineSection
from schemas.config.engines import mask_password
from tasks.chat.messages import RequestError, for_servers, spell_call
from tasks.chat.special_tokens import escape, map_texts
from tasks.engines.protocol import (
    Capabilities,
    Completion,
    EngineDied,
    Request,
    ScoreRequest,
    Scores,
    pick_scores,
)

CONNECT_SECONDS = 10.0  # a host that is not there is found out soon, however long an answer may take
UNANSWERED = 5
"""After so many requests in a row without an answer, each with the library's own retries, no other is sent."""

T = TypeVar("T")
RETRY_SECONDS = 0.1  # before a request is repeated whose reply can't be read; doubled each time
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What reading a reply raises that lacks OpenAI's form: no choices, a null message, HTML, broken JSON."""


class _Client(DefaultAsyncHttpxClient):
    """The library's HTTP client with a limit on a whole answer. Its own limit is on each piece of one, so a server that
    sends a byte now and then would be waited for without end.

    Args:
        seconds: for an answer.
        options: of the library's client.
    """

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, and read its answer.

        Raises:
            TimeoutError: the answer was not whole in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await super().send(request, **options)
        except TimeoutError:
            raise TimeoutError(f"no whole answer in {self._seconds:g} s; see options.timeout_s") from None


class OpenAIEngine:
    """An engine over such a server.

    Args:
        section: base_url, model, api_key_env (the only place that reads the variable), max_batch, and options:
            server: "vllm" for a vLLM server, which offers structured output and scoring;
            structured: overrides whether the server takes `structured_outputs` in a request;
            extra_body: further fields of every request; timeout_s: for a whole answer; max_retries: of the client
            library.

    Raises:
        RequestError: the variable of the API key is not set.

    Attributes:
        faults: requests that were asked again, by kind.

    A server that leaves UNANSWERED requests in a row without an answer ends the stage: all requests raise EngineDied.
    """

    def __init__(self, section: EngineSection) -> None:
        options = section.options
        self._vllm = options.get("server") == "vllm"
        self.capabilities = Capabilities(
            structured=bool(options.get("structured", self._vllm)), scoring=self._vllm, topk=self._vllm
        )
        # Without a key a placeholder, because the library would send $OPENAI_API_KEY to this server.
        self._key = os.environ.get(section.api_key_env, "") if section.api_key_env else "none"
        if not self._key:
            raise RequestError(f"api_key_env: the environment variable {section.api_key_env} is not set")
        self._retries = int(options.get("max_retries", 5))
        self._address, password = mask_password(section.base_url or "")
        given = self._key if section.api_key_env else ""
        self._secrets = sorted(filter(None, {given, password, unquote(password)}), key=len, reverse=True)
        seconds = float(options.get("timeout_s", 600))
        self._client = AsyncOpenAI(
            base_url=section.base_url,
            api_key=self._key,
            timeout=Timeout(seconds, connect=CONNECT_SECONDS),
            max_retries=self._retries,
            http_client=_Client(seconds, event_hooks={"request": [self._note_retry]}),
        )
        self.faults: Counter[str] = Counter()
        self._model, self._extra = str(section.model), dict(options.get("extra_body", {}))
        self._concurrency = asyncio.Semaphore(section.max_batch)
        self._unanswered = 0

    async def generate(self, request: Request) -> Completion:
        """As the protocol."""
        if request.adapter is not None:
            raise RequestError("a server plays its own model; give the role an engine that takes adapters")
        if request.regex and not self.capabilities.structured:
            raise RequestError(
                "this server is not known to take a regex; set options.structured or the role's to false"
            )
        sampling, extra = request.sampling, {**self._template(request.thinking), **self._extra}
        if request.regex:
            extra["structured_outputs"] = {"regex": request.regex}
        if request.tools:
            extra["tools"] = [map_texts(dict(tool), escape) for tool in request.tools]
        return await self._ask(
            _completion,
            self._client.chat.completions.create,
            model=self._model,
            messages=[map_texts(for_servers(message), escape) for message in request.messages],
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed % 2**63,
            stop=list(sampling.stop) or None,
            extra_body=extra,
        )

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol; only for vLLM servers, which also tokenize."""
        if not self._vllm:
            raise RequestError("scoring needs a vLLM server; set options.server to vllm if it is one")
        prompt = await self._tokenize(
            messages=[map_texts(message, escape) for message in request.messages],
            add_generation_prompt=True,
            **self._template(thinking=False),
        )
        segments = [
            await self._tokenize(prompt=escape(text), add_special_tokens=False) for text in request.segments
        ]
        tokens = [token for segment in segments for token in segment]

        def read(answer: Any) -> Scores:
            reported = (
                {int(token): float(entry["logprob"]) for token, entry in position.items()}
                for position in answer.choices[0].model_dump()["prompt_logprobs"][len(prompt) :]
            )
            return pick_scores(segments, reported, request.top_k)

        return await self._ask(
            read,
            self._client.completions.create,
            model=self._model,
            prompt=prompt + tokens,
            max_tokens=1,
            temperature=0.0,
            extra_body={"prompt_logprobs": request.top_k},
        )

    async def _note_retry(self, request: Any) -> None:
        """Count what the library asks again, after an error that may pass."""
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            self.faults["no answer, asked again"] += 1

    def _template(self, thinking: bool) -> dict[str, Any]:
        """Arguments of the server's chat template; servers other than vLLM may refuse the field."""
        return {"chat_template_kwargs": {"enable_thinking": thinking}} if self._vllm else {}

    async def _tokenize(self, **body: Any) -> list[int]:
        root = self._client.with_options(base_url=str(self._client.base_url).rstrip("/").removesuffix("/v1"))
        return await self._ask(
            lambda answer: [int(token) for token in answer["tokens"]],
            root.post,
            "/tokenize",
            body={"model": self._model, **body},
            cast_to=object,
        )

    async def _ask(self, read: Callable[[Any], T], call: Any, *arguments: Any, **fields: Any) -> T:
        """`read` of the reply. The library repeats what fails; a reply that has no end or can't be read is asked for
        again here.

        A circuit breaker stands before the server: it stays open, since the stage ends with it.
        """
        for attempt in range(self._retries + 1):
            async with self._concurrency:
                if self._unanswered >= UNANSWERED:
                    raise EngineDied(
                        f"the server {self._address} left {UNANSWERED} requests in a row without an answer; "
                        "start it or correct engines.<name>.base_url, and run the stage again: it goes on from the "
                        "requests that were answered"
                    )
                try:
                    answer = await call(*arguments, **fields)
                    self._unanswered = 0
                    return read(answer)
                except OpenAIError as error:
                    self._unanswered = self._unanswered + 1 if _is_outage(error) else 0
                    raise self._failed(error) from None
                except (*_MALFORMED, TimeoutError) as error:
                    fault = error
            if attempt < self._retries:
                self.faults["unreadable reply, asked again"] += 1
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        self._unanswered += isinstance(fault, TimeoutError)
        raise self._failed(f"no whole reply of OpenAI's form, asked {self._retries + 1} times ({fault!r})")

    def _failed(self, fault: Exception | str) -> RequestError:
        kind = type(fault).__name__ if isinstance(fault, Exception) else "unreadable reply"
        named = f"{kind}: {fault}" if isinstance(fault, Exception) else fault
        # Some servers repeat the key they were sent, and errors name addresses.
        for secret in self._secrets:
            named = named.replace(secret, "***")
        return RequestError(f"server {self._address}: {named}", kind)

    async def close(self) -> None:
        """As the protocol."""
        await self._client.close()


def _is_outage(error: OpenAIError) -> bool:
    """Whether an error is the server's, not the request's."""
    if isinstance(error, APIStatusError):
        return error.status_code == HTTPStatus.TOO_MANY_REQUESTS or error.status_code >= 500
    return isinstance(error, APIConnectionError)


def _completion(answer: Any) -> Completion:
    choice, usage = answer.choices[0], answer.usage
    if choice.finish_reason is None:
        raise ValueError("the reply has no finish_reason")
    if choice.finish_reason not in ("stop", "length", "tool_calls"):
        raise RequestError(f"the server ended the completion with '{choice.finish_reason}'")
    return Completion(
        text=_message_text(choice.message),
        finish_reason="length" if choice.finish_reason == "length" else "stop",
        prompt_tokens=int(usage.prompt_tokens) if usage else 0,
        completion_tokens=int(usage.completion_tokens) if usage else 0,
    )


def _message_text(message: Any) -> str:
    """A message as the model wrote it, from the reasoning, words and calls into which the server split it."""
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    calls = [
        spell_call({"name": c.function.name, "arguments": c.function.arguments})
        for c in message.tool_calls or ()
    ]
    answer = "\n".join([*([message.content] if message.content else []), *calls])
    return f"<think>\n{thought}\n</think>\n\n{answer}" if thought else answer
