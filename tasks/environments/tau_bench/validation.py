"""Checks of the whole package through the environment, without a model: the reward of the gold actions, which must be
1 on every task, and the reward of doing nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar, cast

from tasks.environments.base import Step, Task
from tasks.environments.tau_bench.calls import RESPOND, write_call
from tasks.environments.tau_bench.environment import TauBench
from tasks.environments.tau_bench.package import SIZES, DomainName, load_domain

R = TypeVar("R")


def replay_gold() -> list[str]:
    """Play the gold actions of every task of both domains, and tell the user the outputs; one line per fault.

    Every task must end with reward 1, every split must have its known size, and the shared tables must be unchanged.
    """
    faults = []
    for name, split, count in _splits():
        found = len(load_domain(name).tasks[split])
        if found != count:
            faults.append(
                f"{name}/{split}: {found} tasks, not {count}; is another version of tau_bench installed?"
            )
        for task, last in asyncio.run(_play_all(name, split, _play_gold)):
            if last.reward != 1.0:
                faults.append(
                    f"{task.task_id}: the gold actions end with reward {last.reward:g} ({dict(last.info)})"
                )
    for name in SIZES:
        if not load_domain(name).snapshot.intact():
            faults.append(f"{name}: a tool changed a record that it did not look up by its key")
    return faults


def do_nothing() -> dict[str, float]:
    """Domain/split -> mean reward of an agent that calls no tool and says nothing: the floor of a success rate."""
    means = {}
    for name, split, _ in _splits():
        ended = asyncio.run(_play_all(name, split, _play_nothing))
        means[f"{name}/{split}"] = sum(last.reward for _, last in ended) / len(ended)
    return means


def _splits() -> Iterator[tuple[DomainName, str, int]]:
    for name, sizes in SIZES.items():
        for split, count in sizes.items():
            yield name, split, count


async def _play_all(
    name: DomainName, split: str, play: Callable[[TauBench, Task], Awaitable[R]]
) -> list[tuple[Task, R]]:
    """Play every task of a split of the package in turn, with a user who answers once."""
    other = next((s for s in SIZES[name] if s != split), None)
    environment = TauBench(name, train_split=other, eval_split=split, user="scripted", patience=1)
    return [(task, await play(environment, task)) for task in environment.tasks("eval")]


async def _play_gold(environment: TauBench, task: Task) -> Step:
    name, split, index = task.task_id.split("/")
    gold = load_domain(cast(DomainName, name)).tasks[split][int(index)]
    await environment.reset(task)
    last = await environment.step(write_call(RESPOND, {"content": " ".join(gold.outputs)}))
    for action in gold.actions:
        if not last.done:
            last = await environment.step(write_call(action.name, action.kwargs))
    return last if last.done else await environment.step(environment.no_op)


async def _play_nothing(environment: TauBench, task: Task) -> Step:
    await environment.reset(task)
    return await environment.step(environment.no_op)
