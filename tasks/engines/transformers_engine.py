"""The in-process backend: transformers' models under continuous batching, on CPU or one GPU.

Two modes. The usual one keeps its batch full: a row that ends makes place for a waiting request
(`tasks.engines.continuous`). A row's random stream is its own, but its logits carry the rounding of its batch's shape.
The deterministic one computes in float32 with shapes that follow from the request alone (rows filled up to max_batch,
lengths of prompt and context rounded up), so that a request's result is bitwise independent of its companions; its
batches are the library's `generate`, and so are those of models whose layers do not all attend to everything
(sliding windows, recurrent states): there, once half of a batch is done the rest goes on alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
import xgrammar
from transformers import DynamicCache, GenerationConfig, StaticCache
from transformers.utils import logging as transformers_logging

from schemas.config import EngineSection, ModelSection
from tasks.engines.adapters import AdapterPool, load_model, stop_ids
from tasks.engines.attention import register as grouped_attention
from tasks.engines.base import (
    Capabilities,
    Completion,
    EngineError,
    Request,
    Sampling,
    ScoreRequest,
    Scores,
    make_scores,
)
from tasks.engines.batching import BatchWorker, Job
from tasks.engines.chat import ChatTokenizer, shared_chat_tokenizer
from tasks.engines.continuous import Asked, ContinuousBatch
from tasks.engines.models import resolve_model
from tasks.engines.prefill import (
    Prompts,
    after_head,
    chunks,
    pad_left,
    read_head,
    read_prompts,
    shared_head,
    spread,
)
from tasks.engines.prefixes import Prefixes, Text, shared
from tasks.engines.sampler import Halt, Row, RowSampler
from tasks.engines.slots import fits

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

    from tasks.engines.base import Adapter

BUCKET = 64  # deterministic: padded lengths are multiples of this
SCORED_LOGITS = 1 << 26  # most logits kept at once when scoring: 256 MiB in float32
ONE_TOKEN = Sampling(max_tokens=1)  # of the rows that fill up a deterministic batch


class TransformersEngine:
    """See the module.

    Args:
        section: max_batch, merge_adapters, deterministic; `model` instead of the model in training.
        model: weights, dtype, device and context length.

    Raises:
        EngineError: the model can't be loaded.
        tasks.engines.models.ModelError: it can't be found.
    """

    def __init__(self, section: EngineSection, model: ModelSection) -> None:
        transformers_logging.disable_progress_bar()
        self.capabilities = Capabilities(
            structured=True,
            scoring=True,
            topk=True,
            adapters=True,
            token_ids=True,
            seeded=section.deterministic,
        )
        path = resolve_model(model)
        cuda = model.device == "cuda" or (model.device == "auto" and torch.cuda.is_available())
        self._device = "cuda" if cuda else "cpu"
        dtype = torch.float32 if section.deterministic else getattr(torch, model.dtype)
        # The fused CPU attention rounds by the thread that computes a row; the plain one does not.
        attention = "eager" if section.deterministic else "sdpa" if cuda else grouped_attention()
        base = load_model(path, model.revision, dtype, self._device, attention)
        self._section, self._context_length = section, model.context_length
        self._tokenizer: ChatTokenizer = shared_chat_tokenizer(path, model.revision)
        self._stop_ids = stop_ids(base, self._tokenizer)
        self._vocabulary = int(base.get_output_embeddings().weight.shape[0])
        self._continuous = not section.deterministic and fits(base)
        self._prefixes = Prefixes()
        self._pool: AdapterPool | None = AdapterPool(base, merge=section.merge_adapters)
        info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer.tokenizer, vocab_size=self._vocabulary, stop_token_ids=sorted(self._stop_ids)
        )
        self._compile = lru_cache(maxsize=256)(xgrammar.GrammarCompiler(info).compile_regex)
        self._worker = BatchWorker(self._compute, "transformers-engine")

    async def generate(self, request: Request) -> Completion:
        """As the protocol."""
        thinking = request.thinking and request.regex is None
        prompt = self._tokenizer.prompt_ids(request.messages, tools=request.tools, thinking=thinking)
        self._check_length(len(prompt), request.sampling.max_tokens)
        grammar = self._grammar(request.regex) if request.regex else None
        row = Row(request.sampling, prompt, self._stop_ids, self._tokenizer, grammar)
        shape = (self._padded(len(prompt)), self._padded(request.sampling.max_tokens))
        group = ("generate", request.adapter, shape if self._section.deterministic else None)
        asked = Asked(row, Text(request.adapter.digest if request.adapter else "", prompt))
        job = Job(asked, group, (request.sampling.max_tokens, len(prompt)), self._section.max_batch)
        completion: Completion = await self._worker.submit(job)
        return completion

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol."""
        prompt = self._tokenizer.prompt_ids(request.messages)
        segments = self._tokenizer.segment_ids(request.segments)
        length = sum(map(len, segments))
        self._check_length(len(prompt), length)
        if not length:
            return make_scores(segments, (), () if request.top_k else None)
        kept, whole = self._padded(length), self._padded(len(prompt) + length)
        group = ("score", request.adapter, (kept, whole) if self._section.deterministic else None)
        rows = max(1, min(self._section.max_batch, SCORED_LOGITS // (kept * self._vocabulary)))
        scores: Scores = await self._worker.submit(
            Job((prompt, segments, request.top_k), group, (length, len(prompt)), rows)
        )
        return scores

    async def close(self) -> None:
        """As the protocol. A running batch is given up after its current token."""
        await asyncio.to_thread(self._worker.close)
        self._pool, self._prefixes = None, Prefixes()

    def _check_length(self, prompt: int, completion: int) -> None:
        if prompt + completion > self._context_length:
            raise EngineError(
                f"a prompt of {prompt} tokens and a completion of up to {completion} do not fit into "
                f"model.context_length = {self._context_length}; raise it or shorten the role's max_tokens"
            )

    def _grammar(self, regex: str) -> CompiledGrammar:
        try:
            return self._compile(regex)
        except RuntimeError as error:
            raise EngineError(
                f"the regex {regex!r} can't be compiled: {str(error).splitlines()[0]}"
            ) from error

    def _padded(self, length: int) -> int:
        """Deterministic: the length up to a full bucket, at least one pad, because the library computes
        batches without any padding in another way."""
        return (length // BUCKET + 1) * BUCKET if self._section.deterministic else length

    # --- on the worker's thread
    # ------------------------------------------------------------------------------

    @torch.inference_mode()
    def _compute(self, jobs: list[Job]) -> None:
        assert self._pool is not None
        kind, adapter, _ = cast("tuple[str, Adapter | None, object]", jobs[0].group)
        with self._pool.under(adapter) as model:
            if kind == "generate" and self._continuous:
                self._write(model, jobs)
            elif kind == "generate":
                self._generate(model, jobs)
            else:
                self._score(model, jobs)

    def _write(self, model: torch.nn.Module, jobs: list[Job]) -> None:
        def more(most: int) -> list[Job]:
            # Those that know most of their prompt come first, before it is forgotten.
            return self._worker.more(jobs[0], most, lambda job: -shared(job.payload.text, self._prefixes))

        batch = ContinuousBatch(
            model, jobs[0].payload.text.owner, self._prefixes, jobs[0].rows, self._tokenizer.pad_id
        )
        batch.run(jobs, more, lambda: self._worker.closing)

    def _generate(self, model: torch.nn.Module, jobs: list[Job]) -> None:
        by_row = {job.payload.row: job for job in jobs}
        rows: list[Row] = list(by_row)
        fixed = self._section.deterministic
        if fixed:
            filler = [
                Row(ONE_TOKEN, rows[0].prompt, self._stop_ids, self._tokenizer) for _ in range(jobs[0].rows)
            ]
            rows += filler[len(rows) :]
        prompts = [row.prompt for row in rows]
        ids, mask, cache = self._fixed_prompts(model, rows) if fixed else self._read(model, prompts)

        def on_done(row: Row) -> None:
            if row in by_row:
                by_row[row].finish(row.completion())

        while True:
            sampler = RowSampler(rows, self._tokenizer.pad_id, on_done)
            floor = 0 if fixed else len(rows) // 2
            cap = max(row.sampling.max_tokens - len(row.tokens) for row in rows)
            ids = model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                generation_config=GenerationConfig(
                    max_new_tokens=cap, pad_token_id=self._tokenizer.pad_id, disable_compile=True
                ),
                logits_processor=[sampler],
                stopping_criteria=[Halt(sampler, floor, lambda: self._worker.closing)],
            )
            left = [index for index, row in enumerate(rows) if not row.done]
            if not left:
                return
            if self._worker.closing:
                raise EngineError("the engine was closed while this request ran")
            # Finished rows cost as much as others: the rest goes on without them.
            rows = [rows[index] for index in left]
            mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)[left]
            ids = ids[left]
            cache.batch_select_indices(torch.tensor(left, device=ids.device))

    def _read(self, model: torch.nn.Module, prompts: Sequence[Sequence[int]]) -> Prompts:
        return read_prompts(model, prompts, self._tokenizer.pad_id, self._device)

    def _fixed_prompts(self, model: torch.nn.Module, rows: Sequence[Row]) -> Prompts:
        """Prompts still to be read, in shapes that follow from one request alone."""
        ids, mask = self._pad([row.prompt for row in rows])
        # MKL rounds by memory alignment: with a fixed context length every row of every product is aligned
        # alike.
        length = ids.shape[1] + self._padded(rows[0].sampling.max_tokens)
        return Prompts(ids, mask, StaticCache(model.config, length))

    def _score(self, model: torch.nn.Module, jobs: list[Job]) -> None:
        texts = [(prompt, [token for segment in segments for token in segment]) for prompt, segments, _ in
                 (job.payload for job in jobs)]  # fmt: skip
        fixed = self._section.deterministic
        head = 0 if fixed else shared_head([prompt for prompt, _ in texts])
        common = read_head(model, texts[0][0][:head], self._device)
        lengths = [len(prompt) + len(completion) - head for prompt, completion in texts]
        for rows in [range(len(texts))] if fixed else chunks(lengths):
            self._score_rows(model, [jobs[r] for r in rows], [texts[r] for r in rows], common, head)

    def _score_rows(
        self,
        model: torch.nn.Module,
        jobs: list[Job],
        texts: list[tuple[list[int], list[int]]],
        common: DynamicCache,
        head: int,
    ) -> None:
        filler = texts[:1] * (jobs[0].rows - len(texts)) if self._section.deterministic else []
        kept = max(self._padded(len(completion)) for _, completion in texts)
        ids, mask = self._pad([(prompt + completion)[head:] for prompt, completion in [*texts, *filler]])
        whole, positions = after_head(mask, head)
        logits = model(
            input_ids=ids,
            attention_mask=whole,
            position_ids=positions,
            past_key_values=spread(model, common, len(texts)) if head else None,
            logits_to_keep=kept + 1,
            use_cache=bool(head),
        ).logits
        for index, (job, (_, completion)) in enumerate(zip(jobs, texts, strict=True)):
            logprobs = logits[index, -len(completion) - 1 : -1].float().log_softmax(dim=-1)
            tokens = torch.tensor(completion, device=logits.device)
            _, segments, top_k = job.payload
            top = None
            if top_k:
                best = logprobs.topk(min(top_k, logprobs.shape[1]))
                top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            job.finish(make_scores(segments, logprobs.gather(1, tokens[:, None]).squeeze(1).tolist(), top))

    def _pad(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and attention mask; in deterministic mode up to a full bucket."""
        ids, mask = pad_left(sequences, self._tokenizer.pad_id, self._device)
        more = self._padded(ids.shape[1]) - ids.shape[1]
        fill = torch.nn.functional.pad
        return fill(ids, (more, 0), value=self._tokenizer.pad_id), fill(mask, (more, 0))
