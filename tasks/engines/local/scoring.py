"""Scores given completions with a model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tasks.engines.local.batching import Job
from tasks.engines.local.kv_cache import KVCache
from tasks.engines.local.padding import chunks, pad_right, pad_rows, padded
from tasks.engines.local.prefix_cache import Entry, PrefixCache, Text
from tasks.engines.local.prompt_reading import PromptReader
from tasks.engines.protocol import make_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The payloads of the jobs are (prompt ids, ids of each segment, top_k). The segments make up the completion.


def score(
    jobs: Sequence[Job], model: PreTrainedModel, owner: str, prefix_cache: PrefixCache, pad_id: int
) -> None:
    """Set the futures of jobs. A prompt that several completions answer is read once, and so is what it shares with
    texts in the prefix cache. The prompts are added to it.

    Args:
        jobs: of one batch.
        model: must satisfy `tasks.engines.local.kv_cache.fits`.
        owner: digest of the model's adapter; '' for none.
        prefix_cache: of this and earlier batches.
        pad_id: pads texts that are computed together.
    """
    # Completions of one prompt stand together, and prompts of one length.
    jobs = sorted(jobs, key=lambda job: (len(job.payload[0]), job.payload[0]))
    for rows in chunks([len(job.payload[0]) + len(_completion(job)) for job in jobs]):
        _score_together([jobs[row] for row in rows], model, owner, prefix_cache, pad_id)


def _score_together(
    jobs: Sequence[Job], model: PreTrainedModel, owner: str, prefix_cache: PrefixCache, pad_id: int
) -> None:
    cache, entries = KVCache(model, len(jobs)), list[Entry]()
    prompts = [Text(owner, job.payload[0]) for job in jobs]
    try:
        rows: list[Job] = []  # by slot: the first completion of each prompt follows it in its slot
        further: list[tuple[int, Job]] = []  # slot of the prompt, completion
        for numbers, entry in PromptReader(model, prefix_cache, cache, pad_id).read(prompts, 0):
            one, *others = (jobs[number] for number in numbers)
            further += [(len(entries), job) for job in others]
            entries.append(entry)
            rows.append(one)
        for slot, job in further:
            known = len(job.payload[0]) - 1
            cache.place(len(rows), cache.held(slot, known), known)
            rows.append(job)
        given = [[job.payload[0][-1], *_completion(job)[:-1]] for job in rows]
        starts = [len(job.payload[0]) - 1 for job in rows]
        logits = cache.follow(model, range(len(rows)), starts, pad_right(given, pad_id))
    except BaseException:
        for entry in entries:
            prefix_cache.drop(entry)
        raise
    for entry in entries:
        prefix_cache.finish(entry, entry.text, cache)
    for job, tokens, of_job in zip(rows, given, logits, strict=True):
        _finish(job, of_job[: len(tokens)])


def score_whole(jobs: Sequence[Job], model: PreTrainedModel, pad_id: int, *, fixed: bool) -> None:
    """Set the futures of jobs. Each text is read whole, for models whose cache can't be shared.

    Args:
        jobs: of one batch.
        model: any.
        pad_id: pads texts that are computed together.
        fixed: compute in shapes that follow from one request alone.
    """
    texts = [[*job.payload[0], *_completion(job)] for job in jobs]
    for rows in [range(len(jobs))] if fixed else chunks(list(map(len, texts))):
        completions = [_completion(jobs[row]) for row in rows]
        filler = [texts[0]] * (jobs[0].rows - len(jobs)) if fixed else []
        kept = max(padded(len(c)) if fixed else len(c) for c in completions)
        ids, mask = pad_rows([*(texts[row] for row in rows), *filler], pad_id, model.device, fixed=fixed)
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),  # of each token in its text, padding left out
            logits_to_keep=kept + 1,
            use_cache=False,
        ).logits
        for place, (row, completion) in enumerate(zip(rows, completions, strict=True)):
            _finish(jobs[row], logits[place, -len(completion) - 1 : -1])


def _completion(job: Job) -> list[int]:
    return [token for segment in job.payload[1] for token in segment]


def _finish(job: Job, logits: torch.Tensor) -> None:
    """Set a job's future.

    Args:
        job: the job.
        logits: that foretell its completion, [tokens, vocabulary].
    """
    _, segments, top_k = job.payload
    logprobs = logits.float().log_softmax(dim=-1)
    tokens = torch.tensor(_completion(job), device=logits.device)
    top = None
    if top_k:
        best = logprobs.topk(min(top_k, logprobs.shape[1]))
        top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    job.finish(make_scores(segments, logprobs.gather(1, tokens[:, None]).squeeze(1).tolist(), top))
