"""vLLM in the stage's process, with its own continuous batching and LoRA adapters per request.

LoRA adapters lie beside the weights. Merged adapters and full checkpoints replace them: each begins once the engine of
the one before has ended, so that two versions of the weights never stand side by side.

vLLM is not bitwise repeatable: the rounding of a request depends on the other requests in its batch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from schemas.config import EngineSection, ModelSection
from storage.files import beside
from tasks.chat.messages import RequestError
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
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
from tasks.engines.reaper import descendants, watch
from tasks.engines.vllm.settings import engine_arguments, private_variables, read_completion
from tasks.engines.vllm.turns import Turns

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

END_SECONDS = 60.0  # for killed processes to be gone


class VllmEngine:
    """An engine over vLLM's AsyncLLM. All calls must come from one event loop.

    Args:
        section: `options` are arguments of vLLM's engine (tensor_parallel_size, gpu_memory_utilization ...). With
            `merge_adapters` each adapter version is merged into a checkpoint: on CPU several times faster than LoRA.
            Merged adapters and full checkpoints (`model.train: full`) take turns, and each turn costs a start.
        model: weights, dtype, context length, LoRA rank.
        cache_dir: for vLLM's caches and merged checkpoints.

    Raises:
        EngineDied: vLLM does not start.
    """

    def __init__(self, section: EngineSection, model: ModelSection, cache_dir: Path) -> None:
        os.environ.update(private_variables(cache_dir))
        self.capabilities = FULL_CAPABILITIES
        self._beside = model.train == "lora" and not section.merge_adapters
        self._section, self._model, self._cache_dir = section, model, cache_dir
        self._path = resolve_model(model)
        self._tokenizer: ChatTokenizer = load_chat_tokenizer(self._path, model.revision)
        self._engine: Any = None
        self._processes: set[psutil.Process] = set()  # of the engine
        self._reaper: subprocess.Popen[bytes] | None = None
        self._turns = Turns(self._load)
        self._lora_ids: dict[str, int] = {}
        self._request_ids = count()
        self._closed = False
        if self._beside:
            self._serve(str(self._path))

    async def generate(self, request: Request) -> Completion:
        """As the protocol."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        sampling, thinking = request.sampling, request.thinking and request.regex is None
        prompt = self._tokenizer.prompt_ids(request.messages, tools=request.tools, thinking=thinking)
        check_length(self._model, len(prompt), sampling.max_tokens)
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed % 2**63,
            stop=list(sampling.stop),
            stop_token_ids=self._tokenizer.end_ids,
            logprobs=0,
            structured_outputs=StructuredOutputsParams(regex=request.regex) if request.regex else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = (await self._run(prompt, params, request.adapter)).outputs[0]
        tokens = list(output.token_ids)
        positions: list[Any] = list(output.logprobs or [])
        chosen = [position[token].logprob for token, position in zip(tokens, positions, strict=True)]
        return read_completion(
            self._tokenizer, prompt, tokens, chosen, output.text, output.finish_reason, output.stop_reason
        )

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol."""
        from vllm import SamplingParams

        prompt = self._tokenizer.prompt_ids(request.messages, reasoning=request.reasoning)
        segments = self._tokenizer.segment_ids(request.segments)
        tokens = [token for segment in segments for token in segment]
        check_length(self._model, len(prompt), len(tokens) + 1)
        if not tokens:
            return make_scores(segments, (), () if request.top_k else None)
        # vLLM has no scoring call: it reports the prompt's log-probabilities while it writes one unused token.
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=request.top_k, detokenize=False
        )
        output = await self._run(prompt + tokens, params, request.adapter)
        positions: list[Any] = list(output.prompt_logprobs or [])[-len(tokens) :]
        reported = ({token: entry.logprob for token, entry in position.items()} for position in positions)
        return pick_scores(segments, reported, request.top_k)

    async def close(self) -> None:
        """As the protocol; ends vLLM's processes."""
        self._closed = True
        await asyncio.to_thread(self._end)

    async def _run(self, prompt: list[int], params: Any, adapter: Adapter | None) -> RequestOutput:
        from vllm.inputs import TokensPrompt
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._closed:
            raise RequestError("the engine is closed")
        lora = None
        if adapter is not None and self._beside:
            if not adapter.is_lora:
                raise RequestError(
                    f"{adapter.path} holds a full checkpoint, and model.train is lora; set model.train back to full"
                )
            number = self._lora_ids.setdefault(adapter.digest, len(self._lora_ids) + 1)
            lora = LoRARequest(adapter.digest, number, str(adapter.path))
        outputs: list[RequestOutput] = []
        try:
            async with nullcontext() if self._beside else self._turns.under(adapter):
                stream = self._engine.generate(
                    TokensPrompt(prompt_token_ids=prompt),
                    params,
                    str(next(self._request_ids)),
                    lora_request=lora,
                )
                outputs = [output async for output in stream]
        except (RequestError, EngineDied):
            raise
        except EngineDeadError as error:
            if self._closed:
                raise RequestError("the engine is closed") from error
            raise EngineDied(
                "vLLM's engine process has ended (its own log above says why). Run the stage again: it goes on from "
                "the requests that were answered"
            ) from error
        except Exception as error:
            # vLLM's errors (a refused request, an adapter that can't be loaded) have no common base.
            reason = str(error).strip() or type(error).__name__
            raise RequestError(f"vLLM refused or failed this request: {reason}") from error
        if not outputs:
            raise RequestError("vLLM gave no output for this request")
        return outputs[-1]

    async def _load(self, adapter: Adapter | None) -> None:
        """Have an engine with an adapter's weights merged in, or a full checkpoint's, in place of the one before."""
        await asyncio.to_thread(self._end)
        if self._closed:
            raise RequestError("the engine is closed")
        base = self._path
        self._serve(str(merged_checkpoint(base, self._model, adapter, self._cache_dir) if adapter else base))

    def _serve(self, path: str) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = engine_arguments(self._section, self._model, self._path, path, lora=self._beside)
        before = descendants()
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise EngineDied(f"vLLM does not start (its own log above says more): {reason}") from error
        # Python's own tracker of shared memory stays for the next engine.
        self._processes = {one for one in descendants() - before if not _runs(one, "resource_tracker")}
        self._reaper = watch(self._processes)

    def _end(self) -> None:
        """End the engine; its processes, and so its memory, are gone then."""
        engine, self._engine = self._engine, None
        reaper, self._reaper = self._reaper, None
        if engine is not None:
            engine.shutdown()
        if reaper is not None:
            reaper.communicate()
        _, alive = psutil.wait_procs(self._processes, timeout=END_SECONDS)
        if alive:
            pids = ", ".join(str(process.pid) for process in alive)
            raise EngineDied(f"vLLM's engine of before does not end; end its processes: {pids}")


def _runs(process: psutil.Process, what: str) -> bool:
    try:
        return what in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def merged_checkpoint(base: Path | str, model: ModelSection, adapter: Adapter, cache_dir: Path) -> Path:
    """Path of a checkpoint with the adapter merged in, made at first use; a full checkpoint's own path."""
    if not adapter.is_lora:
        return adapter.path
    target = cache_dir / "merged" / adapter.digest
    if (target / "config.json").is_file():
        return target
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    staging = beside(target)
    weights = AutoModelForCausalLM.from_pretrained(
        str(base), revision=model.revision, dtype=getattr(torch, model.dtype)
    )
    PeftModel.from_pretrained(weights, str(adapter.path)).merge_and_unload().save_pretrained(staging)
    load_chat_tokenizer(base, model.revision).tokenizer.save_pretrained(staging)
    try:
        staging.rename(target)
    except OSError:  # another process, perhaps on a host that shares the folder, was faster
        shutil.rmtree(staging)
        if not (target / "config.json").is_file():
            raise
    return target
