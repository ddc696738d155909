"""Scores given completions with a model of transformers. The prefix that all prompts share is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import fits
from tasks.engines.local.padding import chunks, pad_rows, padded
from tasks.engines.protocol import make_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Text = tuple[list[int], list[int]]  # prompt, completion
MIN_PREFIX = 16  # a shorter shared prefix is not worth a forward pass of its own


class Scorer:
    """Scores a batch; `fixed`: in shapes that follow from one request alone."""

    def __init__(self, model: PreTrainedModel, pad_id: int, fixed: bool) -> None:
        self._model, self._pad_id, self._fixed = model, pad_id, fixed

    def score(self, jobs: Sequence[Job]) -> None:
        """Set the futures of jobs; payloads are (prompt ids, ids of each segment, top_k)."""
        texts: list[Text] = [
            (prompt, [token for segment in segments for token in segment])
            for prompt, segments, _ in (job.payload for job in jobs)
        ]
        apart = self._fixed or not fits(self._model)  # a sliding window would cut off the shared prefix
        prefix = 0 if apart else _shared_prefix([prompt for prompt, _ in texts])
        cache = DynamicCache(config=self._model.config)
        if prefix:
            ids = torch.tensor([texts[0][0][:prefix]], device=self._model.device)
            self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        lengths = [len(prompt) + len(completion) - prefix for prompt, completion in texts]
        for rows in [range(len(texts))] if self._fixed else chunks(lengths):
            self._score_rows([jobs[r] for r in rows], [texts[r] for r in rows], cache, prefix)

    def _score_rows(
        self, jobs: Sequence[Job], texts: Sequence[Text], cache: DynamicCache, prefix: int
    ) -> None:
        filler = [texts[0]] * (jobs[0].rows - len(texts)) if self._fixed else []
        kept = max(padded(len(c)) if self._fixed else len(c) for _, c in texts)
        rest = [(prompt + completion)[prefix:] for prompt, completion in [*texts, *filler]]
        ids, mask = pad_rows(rest, self._pad_id, self._model.device, fixed=self._fixed)
        mask = torch.nn.functional.pad(mask, (prefix, 0), value=1)
        logits = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0)[:, prefix:],
            past_key_values=self._copies(cache, len(texts)) if prefix else None,
            logits_to_keep=kept + 1,
            use_cache=bool(prefix),
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

    def _copies(self, cache: DynamicCache, rows: int) -> DynamicCache:
        """A one-row cache repeated for several rows."""
        copy = DynamicCache(config=self._model.config)
        for number, layer in enumerate(cast("list[DynamicLayer]", cache.layers)):
            assert layer.keys is not None and layer.values is not None
            copy.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), number)
        return copy


def _shared_prefix(prompts: Sequence[list[int]]) -> int:
    """How many first tokens all prompts share while each keeps at least one more; 0 below MIN_PREFIX."""
    if len(prompts) == 1:
        return 0
    first, last = min(prompts), max(prompts)  # in lexical order: all share what these two share
    shortest = min(map(len, prompts))
    same = next((i for i in range(shortest) if first[i] != last[i]), shortest)
    prefix = min(same, shortest - 1)
    return prefix if prefix >= MIN_PREFIX else 0
