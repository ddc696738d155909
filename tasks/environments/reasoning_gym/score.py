"""Generates and scores reasoning-gym's questions in the verifier's process.

Some generators iterate over sets of words, whose order differs between processes without a fixed hash seed.
"""

from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS


def make_question(
    task: str, config: Mapping[str, Any], seed: int
) -> tuple[ProceduralDataset, dict[str, Any]]:
    """The data set that scores answers, and its only question, which the seed determines.

    Raises:
        ValueError: reasoning-gym has no such task, or refuses this configuration.
    """
    if task not in DATASETS:
        raise ValueError(f"reasoning-gym has no task '{task}' (it has {', '.join(sorted(DATASETS))})")
    if taken := config.keys() & {"seed", "size"}:
        raise ValueError(f"config: {', '.join(sorted(taken))} is set by each task of this program; remove it")
    try:
        dataset = reasoning_gym.create_dataset(task, seed=seed, size=1, **config)
    except (AssertionError, TypeError) as error:  # how reasoning-gym refuses values and fields
        raise ValueError(f"config: task {task} refuses {dict(config)}: {error}") from error
    return dataset, dataset[0]


def question(task: str, config: Mapping[str, Any], seed: int) -> tuple[str, str | None]:
    """The text of a question and its stated answer, if it has one; see `make_question`."""
    _, entry = make_question(task, config, seed)
    gold = entry["answer"]
    return str(entry["question"]), gold if isinstance(gold, str) else None


def score(task: str, config: Mapping[str, Any], seed: int, answer: str) -> float:
    """The task's own score of an answer, 0 to 1; see `make_question`."""
    dataset, entry = make_question(task, config, seed)
    return float(dataset.score_answer(answer, entry))
