"""Batches decoded by transformers' `generate`, for what continuous batching can't do (`tasks.engines.local.engine`).

Once half of a batch is done, the rest continues as a smaller batch; requests that arrive meanwhile wait for its end.
In deterministic mode rows are padded to the batch's size and lengths to full buckets, and a batch stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, StaticCache

from tasks.chat.messages import RequestError
from tasks.chat.tokenizers import ChatTokenizer
from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import fits
from tasks.engines.local.padding import pad_rows, padded
from tasks.engines.local.sampler import Halt, Row, RowSampler, advance
from tasks.engines.protocol import Sampling

ONE_TOKEN = Sampling(max_tokens=1)  # of the rows that pad a deterministic batch


class GenerateBatch:
    """Decodes one batch after another; `fixed`: in shapes that follow from one request alone."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: ChatTokenizer, stop_ids: frozenset[int], fixed: bool
    ) -> None:
        self._model, self._tokenizer, self._stop_ids, self._fixed = model, tokenizer, stop_ids, fixed

    def run(self, jobs: Sequence[Job], closing: Callable[[], bool]) -> None:
        """Set the futures of jobs; payloads are `tasks.engines.local.continuous.GenerationRequest`.

        Raises:
            RequestError: the engine is closing.
        """
        by_row = {job.payload.row: job for job in jobs}
        rows: list[Row] = list(by_row)
        if self._fixed:
            filler = [
                Row(ONE_TOKEN, rows[0].prompt, self._stop_ids, self._tokenizer) for _ in range(jobs[0].rows)
            ]
            rows += filler[len(rows) :]
        pad_id = self._tokenizer.pad_id
        ids, mask = pad_rows([row.prompt for row in rows], pad_id, self._model.device, fixed=self._fixed)
        cache = self._cache(ids.shape[1], rows[0].sampling.max_tokens)
        generate: Any = self._model.generate

        def on_done(row: Row) -> None:
            if row in by_row:
                by_row[row].finish(row.completion())

        if not self._fixed and fits(self._model):
            ids = self._begin_repeated(rows, ids, mask, cache, on_done)
        while left := [index for index, row in enumerate(rows) if not row.done]:
            if closing():
                raise RequestError("the engine was closed while this request ran")
            mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
            if len(left) < len(rows):  # finished rows cost as much as others
                rows, ids, mask = [rows[index] for index in left], ids[left], mask[left]
                cache.batch_select_indices(torch.tensor(left, device=ids.device))
            sampler = RowSampler(rows, pad_id, on_done)
            floor = 0 if self._fixed else len(rows) // 2
            cap = max(row.sampling.max_tokens - len(row.tokens) for row in rows)
            ids = generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                generation_config=GenerationConfig(
                    max_new_tokens=cap, pad_token_id=pad_id, disable_compile=True
                ),
                logits_processor=[sampler],
                stopping_criteria=[Halt(sampler, floor, closing)],
            )

    def _begin_repeated(
        self,
        rows: Sequence[Row],
        ids: torch.Tensor,
        mask: torch.Tensor,
        cache: Cache,
        on_done: Callable[[Row], None],
    ) -> torch.Tensor:
        """Where most rows are further samples of a prompt, read each prompt once and sample the first tokens.

        Args:
            rows: R rows.
            ids, mask: of their prompts, [R, tokens].
            cache: empty; it holds the rows' prompts afterwards.
            on_done: called with each row as it ends.

        Returns:
            The ids with the first tokens; as they were where prompts do not repeat.
        """
        numbers: dict[tuple[int, ...], int] = {}
        of_row = [numbers.setdefault(tuple(row.prompt), len(numbers)) for row in rows]
        if 2 * len(numbers) > len(rows):
            return ids
        first = [of_row.index(number) for number in range(len(numbers))]
        logits = self._model(
            input_ids=ids[first],
            attention_mask=mask[first],
            position_ids=(mask[first].cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_select_indices(torch.tensor(of_row, device=ids.device))
        chosen = advance(rows, logits[of_row].float(), on_done)
        return torch.cat([ids, torch.tensor([[chosen[index]] for index in range(len(rows))]).to(ids)], dim=1)

    def _cache(self, length: int, limit: int) -> Cache:
        """A cache for prompts of a padded length and completions of at most `limit` tokens."""
        if not self._fixed:
            return DynamicCache(config=self._model.config)
        # MKL's rounding depends on memory alignment. A fixed context length aligns every row of a product equally.
        return StaticCache(self._model.config, length + padded(limit))
