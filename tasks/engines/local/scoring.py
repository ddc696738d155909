"""Scoring given completions with a transformers model; what all prompts begin with is read once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import fits
from tasks.engines.local.padding import pad_rows, padded
from tasks.engines.local.prefill import after_head, chunks, read_head, shared_head, spread
from tasks.engines.protocol import make_scores

Text = tuple[list[int], list[int]]  # prompt, completion


class Scorer:
    """Scores a batch.

    Args:
        model: a causal language model.
        pad_id: fills rows up.
        fixed: in shapes that follow from one request alone.
    """

    def __init__(self, model: torch.nn.Module, pad_id: int, fixed: bool) -> None:
        self._model, self._pad_id, self._fixed = model, pad_id, fixed

    def score(self, jobs: Sequence[Job]) -> None:
        """Fill the futures of jobs; payloads are (prompt ids, ids of each segment, top_k)."""
        texts: list[Text] = [
            (prompt, [token for segment in segments for token in segment])
            for prompt, segments, _ in (job.payload for job in jobs)
        ]
        apart = self._fixed or not fits(self._model)  # a window would cut what all share
        head = 0 if apart else shared_head([prompt for prompt, _ in texts])
        common = read_head(self._model, texts[0][0][:head], str(self._model.device))
        lengths = [len(prompt) + len(completion) - head for prompt, completion in texts]
        for rows in [range(len(texts))] if self._fixed else chunks(lengths):
            self._score_rows([jobs[r] for r in rows], [texts[r] for r in rows], common, head)

    def _score_rows(
        self, jobs: Sequence[Job], texts: Sequence[Text], common: DynamicCache, head: int
    ) -> None:
        filler = [texts[0]] * (jobs[0].rows - len(texts)) if self._fixed else []
        kept = max(padded(len(c)) if self._fixed else len(c) for _, c in texts)
        whole_texts = [(prompt + completion)[head:] for prompt, completion in [*texts, *filler]]
        ids, mask = pad_rows(whole_texts, self._pad_id, self._model.device, fixed=self._fixed)
        whole, positions = after_head(mask, head)
        logits = self._model(
            input_ids=ids,
            attention_mask=whole,
            position_ids=positions,
            past_key_values=spread(self._model, common, len(texts)) if head else None,
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
