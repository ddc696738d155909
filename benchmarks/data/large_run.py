"""A run as it stands after a thousand iterations: rollouts and priorities, committed as stages commit theirs.

Every iteration has a folder of `episodes` and `transitions` (stage rollout) and one of `priorities` (stage critic-sft).
Their manifests are true: the fingerprint inputs name each input with its digest, so they grow as in a real run. Of all
transitions 40% are scored. A quarter of those are scored twice, in the iteration that drew them and in a later one.
Texts are slices of a corpus of words with Zipf frequencies, so zstd finds in them what it finds in prose. A completion
has as many token ids and float32 log-probabilities as its length says.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.frames import frame_schema
from schemas.manifest import FingerprintInputs
from schemas.rows import Episode, Generation, Priority, Row, Transition
from storage.parquet.staged import stage_table
from storage.store import Committed, Store
from tasks.pipeline.commit import begin_run, commit_folder
from tasks.runtime.stage import Output

RUN = "large"
SCORED, TWICE = 0.4, 0.1  # shares of all transitions that are scored, and scored a second time


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    folders: int  # iterations
    rows: int  # transitions each
    steps: int = 30  # of an episode
    tokens: int = 48  # of a completion, on average

    @property
    def transitions(self) -> int:
        return self.folders * self.rows


class Texts:
    """Prose-like text: slices of a corpus whose words are as frequent as words are.

    Args:
        seed: of the words and of their order.
    """

    def __init__(self, seed: int = 0, words: int = 2_000_000, vocabulary: int = 30_000) -> None:
        stream = np.random.default_rng(seed)
        letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
        lengths = stream.poisson(4.5, vocabulary) + 1
        spelled = [
            "".join(letters[np.minimum(stream.geometric(0.12, n) - 1, len(letters) - 1)]) for n in lengths
        ]
        rank = 1 / np.arange(2, vocabulary + 2)
        chosen = stream.choice(vocabulary, size=words, p=rank / rank.sum())
        ends = stream.random(words) < 0.07
        self._corpus = " ".join(
            spelled[word] + "." if end else spelled[word] for word, end in zip(chosen, ends, strict=True)
        )

    def draw(self, stream: np.random.Generator, count: int, mean: int) -> list[str]:
        """`count` texts of `mean` characters on average, half of that at least."""
        lengths = mean // 2 + stream.poisson(mean / 2, count)
        starts = stream.integers(0, len(self._corpus) - 4 * mean, count)
        return [self._corpus[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]

    @cached_property
    def actions(self) -> list[str]:
        """Four hundred tool calls."""
        stream = np.random.default_rng(1)
        names = self.draw(stream, 400, 24)
        return [f'lookup(item="{name.strip()}", page={n % 7})' for n, name in enumerate(names)]


def transitions_frame(texts: Texts, size: Size, iteration: int) -> pl.DataFrame:
    """An iteration's table `transitions`: episodes of `size.steps` steps, the last one cut at `size.rows`."""
    stream = np.random.default_rng([7, iteration])
    n = size.rows
    number, step = np.divmod(np.arange(n), size.steps)
    episode = [f"{RUN}/{iteration:05d}/train/{k:05d}" for k in number.tolist()]
    seen = texts.draw(stream, n + 1, 160)
    thought = texts.draw(stream, n, 240)
    action = [texts.actions[k] for k in stream.integers(0, len(texts.actions), n).tolist()]
    done = (step == size.steps - 1) | (np.arange(n) == n - 1)
    success = done & (stream.random(n) < 0.4)
    policy = f"policy@{iteration:05d}:0123456789ab"
    lengths = size.tokens // 2 + stream.poisson(size.tokens / 2, n)
    ids = np.minimum(stream.zipf(1.3, lengths.sum()), 49_000)
    logprobs = -stream.exponential(0.6, lengths.sum()).astype(np.float32).astype(np.float64)
    cuts = np.concatenate([[0], lengths.cumsum()])
    generation = {
        "engine": "local",
        "model_version": policy,
        "prompt_digest": "5d41402abc4b",
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 256,
        "seed": stream.integers(0, 1 << 53, n),
        "prompt_tokens": 200 + 45 * step,
        "completion_tokens": lengths,
        "finish_reason": "stop",
        "dropped_turns": 0,
        "dropped_chars": 0,
    }
    columns = {
        "run": RUN,
        "iteration": iteration,
        "status": "ok",
        "transition_id": [f"{e}/{s:03d}" for e, s in zip(episode, step.tolist(), strict=True)],
        "episode_id": episode,
        "split": "train",
        "step": step,
        "task_id": [f"task-{k % 500:04d}" for k in number.tolist()],
        "observation": seen[:-1],
        "raw_action": [f"Thought: {t}\nAction: {a}" for t, a in zip(thought, action, strict=True)],
        "thought": thought,
        "action": action,
        "action_valid": stream.random(n) < 0.97,
        "next_observation": seen[1:],
        "reward": success.astype(float),
        "game_reward": success.astype(float),
        "success": success,
        "done": done,
        "truncated": False,
        "policy_version": policy,
        "token_ids": _lists(ids, cuts),
        "logprobs": _lists(logprobs, cuts),
        "generation": _filled(Generation.model_fields, generation, n).to_struct(),
    }
    return _typed(Transition, columns, n)


def episodes_frame(transitions: pl.DataFrame) -> pl.DataFrame:
    """The table `episodes` of these transitions."""
    grouped = transitions.group_by("episode_id", maintain_order=True)
    told = grouped.agg(
        pl.col("run", "iteration", "status", "split", "task_id", "policy_version").first(),
        pl.lit("frozen_lake").alias("environment"),
        pl.lit(1, pl.Int64).alias("seed"),
        pl.len().cast(pl.Int64).alias("steps"),
        pl.col("reward", "game_reward").sum(),
        pl.col("success", "done", "truncated").any(),
        (~pl.col("action_valid")).sum().cast(pl.Int64).alias("invalid_actions"),
    )
    return _typed(Episode, {name: told[name] for name in told.columns}, told.height)


class Scores:
    """Which transitions each iteration scores: new ones and, from the second iteration on, some a second time."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._times = np.zeros(size.transitions, np.int8)

    def frame(self, iteration: int) -> pl.DataFrame:
        """The iteration's table `priorities`. Ask for the iterations in order."""
        size, stream = self._size, np.random.default_rng([11, iteration])
        again = self._pick(stream, 1, iteration - 1, _quota(int(TWICE * size.transitions), size.folders - 1))
        fresh = self._pick(stream, 0, iteration, _quota(int(SCORED * size.transitions), size.folders))
        self._times[again] += 1
        self._times[fresh] += 1
        rows = stream.permutation(np.concatenate([fresh, again]))
        made, within = np.divmod(rows, size.rows)
        number, step = np.divmod(within, size.steps)
        named = zip(made.tolist(), number.tolist(), step.tolist(), strict=True)
        critic, gap = -stream.exponential(1.2, len(rows)), stream.lognormal(-1.0, 1.0, len(rows))
        columns = {
            "run": RUN,
            "iteration": iteration,
            "status": "ok",
            "transition_id": [f"{RUN}/{i:05d}/train/{k:05d}/{s:03d}" for i, k, s in named],
            "priority": gap,
            "priority_kind": "kl_bound",
            "critic_logprob": critic,
            "backup_logprob": critic + gap,
            "description_tokens": stream.integers(20, 120, len(rows)),
            "backup_draws": 1,
        }
        return _typed(Priority, columns, len(rows))

    def _pick(
        self, stream: np.random.Generator, times: int, iteration: int, quota: "list[int]"
    ) -> np.ndarray:
        """So many transitions of iterations 0..iteration that were scored so many times."""
        if iteration < 0:
            return np.empty(0, np.int64)
        fitting = np.flatnonzero(self._times[: (iteration + 1) * self._size.rows] == times)
        return stream.choice(fitting, min(quota[iteration], len(fitting)), replace=False)


def _quota(total: int, parts: int) -> list[int]:
    cuts = np.linspace(0, total, parts + 1).astype(int)
    return np.diff(cuts).tolist()


def build(root: Path, size: Size) -> Store:
    """The run below a data root: continued where a part is there, refused where it is of another size.

    Raises:
        ValueError: another fixture is there.
    """
    note, wanted = root / "fixture.json", asdict(size)
    if note.exists() and json.loads(note.read_text()) != wanted:
        raise ValueError(
            f"{root}: holds a run of another size ({note.read_text()}); remove it, or name another folder"
        )
    root.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(wanted))
    store, texts, scores = Store(root), Texts(), Scores(size)
    there = set(store.iterations(RUN))
    digests: dict[str, str] = {}
    for iteration in range(size.folders):
        scored = scores.frame(iteration)
        found = store.committed(RUN, "critic-sft", iteration) if iteration in there else None
        if found is not None:
            digests = dict(found.manifest.fingerprint_inputs.inputs)
            continue
        with store.lock(RUN, "the benchmark's fixture"):
            rollout = store.committed(RUN, "rollout", iteration)
            if rollout is None:
                steps = transitions_frame(texts, size, iteration)
                tables = {Episode: episodes_frame(steps), Transition: steps}
                rollout = commit_frames(store, "rollout", iteration, tables)
            digests[f"rollout@{iteration:05d}.transitions"] = rollout.manifest.tables["transitions"].digest
            commit_frames(store, "critic-sft", iteration, {Priority: scored}, inputs=digests)
    return store


def commit_frames(
    store: Store,
    stage: str,
    iteration: int,
    tables: Mapping[type[Row], pl.DataFrame],
    *,
    run: str = RUN,
    inputs: Mapping[str, str] | None = None,
) -> Committed:
    """Commit frames as `tasks.pipeline.commit.commit_output` commits a stage's."""
    fingerprint_inputs = FingerprintInputs(
        stage=stage, code_version=1, run=run, iteration=iteration,
        config={"environment": {"name": "frozen_lake", "options": {}}, "seed": 0},
        prompts={"policy": "5d41402abc4b2a76b9719d911017c592" * 2}, models={"base": "0" * 64},
        inputs=dict(inputs or {}),
    )  # fmt: skip
    with store.staging(run) as folder:
        entries = {model.TABLE: stage_table(folder, model, frame) for model, frame in tables.items()}
        output = Output({}, rows_in=sum(e.rows for e in entries.values()))
        return commit_folder(store, begin_run(store, fingerprint_inputs), entries, output, folder)


def _lists(values: np.ndarray, cuts: np.ndarray) -> pl.Series:
    """Lists out of one array: values[cuts[n]:cuts[n + 1]] each."""
    rows = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
    return (
        pl.DataFrame({"row": rows, "value": values})
        .group_by("row", maintain_order=True)
        .agg("value")["value"]
    )


def _filled(fields: Mapping[str, Any], columns: Mapping[str, Any], count: int) -> pl.DataFrame:
    """A frame of these columns in the order of the fields; one value stands for all rows."""
    return pl.select(
        pl.lit(value).alias(name) if isinstance(value, pl.Series)
        else pl.Series(name, value) if isinstance(value, (list, np.ndarray))
        else pl.repeat(value, count).alias(name)
        for name, value in ((name, columns.get(name)) for name in fields)
    )  # fmt: skip


def _typed(model: type[Row], columns: Mapping[str, Any], count: int) -> pl.DataFrame:
    return _filled(model.model_fields, columns, count).cast(dict(frame_schema(model)))
