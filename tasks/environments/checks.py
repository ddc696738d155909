"""Checks of the protocol that every environment must pass, besides its own validation."""

import asyncio
import re
from collections.abc import Iterator

from tasks.environments.base import Environment, ListsActions, Task, Unplayable, closing
from tasks.environments.splits import SPLITS, own_validation_tasks, shared_tasks

PARTS = ("name", "instructions", "action_format", "templates", "replayable", "markov")
METHODS = ("tasks", "reset", "step", "validate")


def faults_of(environment: Environment) -> list[str]:
    """All faults of an environment, one line each. Asks no model."""
    label = getattr(environment, "name", type(environment).__name__)
    lacking = [part for part in (*PARTS, *METHODS) if not hasattr(environment, part)]
    if lacking:
        return [f"{label}: has no {part}; see Environment in tasks/environments/base.py" for part in lacking]
    return [f"{label}: {fault}" for fault in _protocol(environment)] + environment.validate()


def _protocol(environment: Environment) -> Iterator[str]:
    """Faults that show without knowledge of the task."""
    known = {
        s: own_validation_tasks(environment) if s == "validation" else environment.tasks(s) for s in SPLITS
    }
    if not known["eval"] and not isinstance(environment, Unplayable):
        yield "there is no task of split eval"  # without training tasks it can still be evaluated on
    for split, tasks in known.items():
        if len({task.task_id for task in tasks}) < len(tasks):
            yield f"two tasks of split {split} have the same task_id"
        if any(task.split != split for task in tasks):
            yield f"tasks({split!r}) gives tasks of another split"
        if tasks and tasks != environment.tasks(split):
            yield f"tasks({split!r}) gives other tasks when it is called again"
    yield from shared_tasks(environment)
    form = environment.action_format
    try:
        re.compile(form.regex)
    except re.error as error:
        yield f"action_format.regex is not a regular expression: {error}"
    for name, path in environment.templates.items():
        if not path.is_file():
            yield f"templates: {name}: no file {path}"
    if isinstance(environment, ListsActions) and known["eval"]:
        observation = asyncio.run(_opening(environment, known["eval"][0]))
        for action in environment.legal_actions(observation):
            if not re.fullmatch(form.regex, action):
                yield f"legal_actions lists {action!r}, which action_format.regex does not match"


async def _opening(environment: Environment, task: Task) -> str:
    async with closing(environment):
        return await environment.reset(task)
