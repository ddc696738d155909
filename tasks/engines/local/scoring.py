"""Scores given completions with a model of transformers. The prefix that all prompts share is computed once, and so is
a prompt that several completions answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Read:
    """What a model has read of the texts of a batch.

    Attributes:
        cache: keys and values, one row for each text.
        mask: of the cache, [texts, read tokens with padding].
        tokens: how many of each text are read.
    """

    cache: DynamicCache
    mask: torch.Tensor
    tokens: list[int]


class Scorer:
    """Scores a batch; `fixed`: in shapes that follow from one request alone."""

    def __init__(self, model: PreTrainedModel, pad_id: int, fixed: bool) -> None:
        self._model, self._pad_id, self._fixed = model, pad_id, fixed

    def score(self, jobs: Sequence[Job]) -> None:
        """Set the futures of jobs; payloads are (prompt ids, ids of each segment, top_k)."""
        apart = self._fixed or not fits(
            self._model
        )  # a sliding window would cut off what was computed before
        if not apart:  # completions of one prompt stand together, and prompts of one length
            jobs = sorted(jobs, key=lambda job: (len(job.payload[0]), job.payload[0]))
        texts: list[Text] = [
            (prompt, [token for segment in segments for token in segment])
            for prompt, segments, _ in (job.payload for job in jobs)
        ]
        prefix = 0 if apart else _shared_prefix([prompt for prompt, _ in texts])
        cache = DynamicCache(config=self._model.config)
        if prefix:
            ids = torch.tensor([texts[0][0][:prefix]], device=self._model.device)
            self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        lengths = [len(prompt) + len(completion) - prefix for prompt, completion in texts]
        for rows in [range(len(texts))] if self._fixed else chunks(lengths):
            chunk = [texts[r] for r in rows]
            read = None if apart else self._read(chunk, cache, prefix)
            self._score_rows([jobs[r] for r in rows], chunk, read)

    def _read(self, texts: Sequence[Text], shared: DynamicCache, prefix: int) -> Read | None:
        """What is known before the completions: each distinct prompt but its last token, where prompts repeat; else the
        prefix that all share, if there is one."""
        distinct = list(dict.fromkeys(tuple(prompt) for prompt, _ in texts))
        if len(distinct) == len(texts):
            if not prefix:
                return None
            mask = torch.ones((len(texts), prefix), dtype=torch.long, device=self._model.device)
            return Read(self._rows(shared, [0] * len(texts)), mask, [prefix] * len(texts))
        heads = [prompt[prefix:-1] for prompt in distinct]
        cache = self._rows(shared, [0] * len(distinct)) if prefix else DynamicCache(config=self._model.config)
        mask = torch.ones((len(distinct), prefix), dtype=torch.long, device=self._model.device)
        if any(heads):
            ids, own = pad_rows(heads, self._pad_id, self._model.device, fixed=False)
            mask = torch.cat([mask, own], dim=1)
            self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=_positions(mask)[:, prefix:],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        of_prompt = {prompt: number for number, prompt in enumerate(distinct)}
        rows = [of_prompt[tuple(prompt)] for prompt, _ in texts]
        return Read(self._rows(cache, rows), mask[rows], [len(prompt) - 1 for prompt, _ in texts])

    def _score_rows(self, jobs: Sequence[Job], texts: Sequence[Text], read: Read | None) -> None:
        filler = [texts[0]] * (jobs[0].rows - len(texts)) if self._fixed else []
        kept = max(padded(len(c)) if self._fixed else len(c) for _, c in texts)
        begun = read.tokens if read else [0] * (len(texts) + len(filler))
        rest = [(p + c)[known:] for (p, c), known in zip([*texts, *filler], begun, strict=True)]
        ids, mask = pad_rows(rest, self._pad_id, self._model.device, fixed=self._fixed)
        if read:
            mask = torch.cat([read.mask, mask], dim=1)
        logits = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=_positions(mask)[:, -ids.shape[1] :],
            past_key_values=read.cache if read else None,
            logits_to_keep=kept + 1,
            use_cache=read is not None,
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

    def _rows(self, cache: DynamicCache, rows: Sequence[int]) -> DynamicCache:
        """Rows of a cache, each as often as it is named."""
        chosen = DynamicCache(config=self._model.config)
        for number, layer in enumerate(cast("list[DynamicLayer]", cache.layers)):
            assert layer.keys is not None and layer.values is not None
            chosen.update(layer.keys[list(rows)], layer.values[list(rows)], number)
        return chosen


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Position of each token in its text, padding left out."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _shared_prefix(prompts: Sequence[list[int]]) -> int:
    """How many first tokens all prompts share while each keeps at least one more; 0 below MIN_PREFIX."""
    if len(prompts) == 1:
        return 0
    first, last = min(prompts), max(prompts)  # in lexical order: all share what these two share
    shortest = min(map(len, prompts))
    same = next((i for i in range(shortest) if first[i] != last[i]), shortest)
    prefix = min(same, shortest - 1)
    return prefix if prefix >= MIN_PREFIX else 0
