"""The in-process backend: models of transformers with continuous batching, on CPU or one GPU.

Three modes:
- Continuous (`tasks.engines.local.continuous`, the default): a waiting request takes the slot of a finished row at
  once. Each row has its own random stream, but the last digits of its logits depend on the shape of the batch, and so
  on when other requests arrive.
- Batches (`continuous: false`, and models with sliding windows or recurrent states): one `generate` after another
  (`tasks.engines.local.generate_batches`).
- Deterministic: `generate` in float32 with shapes that follow from one request alone, so that its result is bitwise
  independent of the other requests.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
import xgrammar
from transformers.utils import logging as transformers_logging

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import RequestError
from tasks.chat.tokenizers import ChatTokenizer, shared_chat_tokenizer
from tasks.engines.local.adapters import AdapterPool, load_model, stop_ids
from tasks.engines.local.attention import register as grouped_attention
from tasks.engines.local.batching import BatchWorker, Job
from tasks.engines.local.continuous import ContinuousBatch, GenerationRequest
from tasks.engines.local.generate_batches import GenerateBatch
from tasks.engines.local.kv_cache import fits
from tasks.engines.local.padding import padded
from tasks.engines.local.prefix_cache import PrefixCache, Text, shared
from tasks.engines.local.sampler import Row
from tasks.engines.local.scoring import score, score_whole
from tasks.engines.models import check_length, resolve_model
from tasks.engines.protocol import FULL_CAPABILITIES, Completion, Request, ScoreRequest, Scores, make_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel
    from xgrammar import CompiledGrammar

    from tasks.engines.protocol import Adapter

SCORED_LOGITS = 1 << 26  # logits held at once when scoring: 256 MiB in float32


@lru_cache(maxsize=2)
def grammar_compiler(
    tokenizer: ChatTokenizer, vocabulary: int, stop_ids: frozenset[int]
) -> Callable[[str], CompiledGrammar]:
    """Compiles regexes, each once; the engines that stages make one after another share it.

    Args:
        tokenizer: of the model.
        vocabulary: size of the output layer.
        stop_ids: tokens that end a turn.
    """
    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer.tokenizer, vocab_size=vocabulary, stop_token_ids=sorted(stop_ids)
    )
    return lru_cache(maxsize=256)(xgrammar.GrammarCompiler(info).compile_regex)


class TransformersEngine:
    """An engine that computes in this process, on a thread of its own.

    Args:
        section: max_batch, merge_adapters, deterministic, continuous.
        model: weights, dtype, device and context length.

    Raises:
        RequestError: the model can't be loaded.
        tasks.engines.models.ModelError: the model can't be found.
    """

    def __init__(self, section: EngineSection, model: ModelSection) -> None:
        transformers_logging.disable_progress_bar()
        self.capabilities = FULL_CAPABILITIES
        path = resolve_model(model)
        cuda = model.device == "cuda" or (model.device == "auto" and torch.cuda.is_available())
        self._device = "cuda" if cuda else "cpu"
        dtype = torch.float32 if section.deterministic else getattr(torch, model.dtype)
        # The rounding of fused attention on CPU depends on the thread that computes a row; eager attention's does not.
        attention = "eager" if section.deterministic else "sdpa" if cuda else grouped_attention()
        base = load_model(path, model.revision, dtype, self._device, attention)
        self._section, self._model = section, model
        self._tokenizer: ChatTokenizer = shared_chat_tokenizer(path, model.revision)
        self._stop_ids = stop_ids(base, self._tokenizer)
        self._vocabulary = int(base.get_output_embeddings().weight.shape[0])
        self._continuous = section.continuous and not section.deterministic and fits(base)
        self._prefix_cache = PrefixCache()
        self._pool: AdapterPool | None = AdapterPool(
            base, merge=section.merge_adapters, in_place=cuda, any_place=section.deterministic
        )
        self._compile = grammar_compiler(self._tokenizer, self._vocabulary, self._stop_ids)
        self._worker = BatchWorker(self._compute, "transformers-engine")

    async def generate(self, request: Request) -> Completion:
        """As the protocol."""
        thinking = request.thinking and request.regex is None
        prompt = self._tokenizer.prompt_ids(request.messages, tools=request.tools, thinking=thinking)
        check_length(self._model, len(prompt), request.sampling.max_tokens)
        grammar = self._grammar(request.regex) if request.regex else None
        row = Row(request.sampling, prompt, self._stop_ids, self._tokenizer, grammar)
        shape = (padded(len(prompt)), padded(request.sampling.max_tokens))
        group = ("generate", request.adapter, shape if self._section.deterministic else None)
        requested = GenerationRequest(row, Text(request.adapter.digest if request.adapter else "", prompt))
        size = (request.sampling.max_tokens, len(prompt))
        job = Job(requested, group, size, self._section.max_batch, row.restart)
        try:
            completion: Completion = await self._worker.submit(job)
        except asyncio.CancelledError:
            row.cancelled = True  # frees its slot after the current token
            raise
        return completion

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol."""
        prompt = self._tokenizer.prompt_ids(request.messages, reasoning=request.reasoning)
        segments = self._tokenizer.segment_ids(request.segments)
        length = sum(map(len, segments))
        check_length(self._model, len(prompt), length)
        if not length:
            return make_scores(segments, (), () if request.top_k else None)
        fixed = self._section.deterministic
        shape = (padded(length), padded(len(prompt) + length))
        group = ("score", request.adapter, shape if fixed else None)
        logits = (shape[0] if fixed else length) * self._vocabulary
        rows = max(1, min(self._section.max_batch, SCORED_LOGITS // logits))
        scores: Scores = await self._worker.submit(
            Job((prompt, segments, request.top_k), group, (length, len(prompt)), rows)
        )
        return scores

    async def close(self) -> None:
        """As the protocol. Gives up a running batch after its current token."""
        await asyncio.to_thread(self._worker.close)
        self._pool, self._prefix_cache = None, PrefixCache()

    def _grammar(self, regex: str) -> CompiledGrammar:
        try:
            return self._compile(regex)
        except RuntimeError as error:
            raise RequestError(
                f"the regex {regex!r} can't be compiled: {str(error).splitlines()[0]}"
            ) from error

    # What follows runs on the worker's thread.

    @torch.inference_mode()
    def _compute(self, jobs: list[Job]) -> None:
        assert self._pool is not None
        kind, adapter, _ = cast("tuple[str, Adapter | None, object]", jobs[0].group)
        with self._pool.under(adapter) as model:
            if kind == "score":
                self._score(model, adapter, jobs)
            elif self._continuous:
                self._decode(model, jobs)
            else:
                batch = GenerateBatch(model, self._tokenizer, self._stop_ids, self._section.deterministic)
                batch.run(jobs, self._closing)

    def _score(self, model: PreTrainedModel, adapter: Adapter | None, jobs: list[Job]) -> None:
        if self._section.deterministic or not fits(model):
            score_whole(jobs, model, self._tokenizer.pad_id, fixed=self._section.deterministic)
            return
        # Only where batches depend on when requests arrive may a result depend on what earlier ones left.
        prefixes = self._prefix_cache if self._continuous else PrefixCache()
        score(jobs, model, adapter.digest if adapter else "", prefixes, self._tokenizer.pad_id)

    def _decode(self, model: PreTrainedModel, jobs: list[Job]) -> None:
        def more(most: int) -> list[Job]:
            # Requests with the longest known prefix come first, while the prefix cache still holds it.
            return self._worker.more(jobs[0], most, lambda job: -shared(job.payload.text, self._prefix_cache))

        batch = ContinuousBatch(
            model, jobs[0].payload.text.owner, self._prefix_cache, jobs[0].rows, self._tokenizer.pad_id
        )
        batch.run(jobs, more, self._closing)

    def _closing(self) -> bool:
        return self._worker.closing
