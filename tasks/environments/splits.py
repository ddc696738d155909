"""Which tasks a run plays as train, validation and eval, and that no two of these splits share one."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import get_args

from schemas.rows import Split
from tasks.environments.base import Environment, Task

SPLITS: tuple[Split, ...] = get_args(Split)
LENT = 10  # without validation tasks of its own, an environment lends one training task in this many


def played_tasks(environment: Environment, split: Split) -> Sequence[Task]:
    """The tasks that a run plays as a split. They are the environment's own, unless it has no validation tasks.

    Then a tenth of its training tasks, rounded down, is lent: those whose ids have the smallest digests, so that every
    process lends the same and a task more changes little. They are never training tasks, also where no validation task
    is played, because it might be in a later iteration. A lent task is as the environment made it, with split train.
    """
    if split == "eval":
        return environment.tasks(split)
    own, train = own_validation_tasks(environment), environment.tasks("train")
    lent = () if own else sorted(train, key=_digest)[: len(train) // LENT]
    if split == "validation":
        return own or lent
    ids = {task.task_id for task in lent}
    return [task for task in train if task.task_id not in ids]


def own_validation_tasks(environment: Environment) -> Sequence[Task]:
    """The validation tasks that an environment has itself; may be empty."""
    try:
        return environment.tasks("validation")
    except KeyError:  # the environment was written for train and eval
        return ()


def _digest(task: Task) -> str:
    return hashlib.sha256(task.task_id.encode()).hexdigest()


def shared_tasks(environment: Environment) -> Iterator[str]:
    """One line for every two splits that have a task in common."""
    ids = {split: {task.task_id for task in played_tasks(environment, split)} for split in SPLITS}
    for first, second in combinations(SPLITS, 2):
        if common := ids[first] & ids[second]:
            yield f"a task is in both splits {first} and {second}: {min(common)}"
