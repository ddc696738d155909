"""Checks of a configuration against its environment: tasks, actions, tools, what the algorithm needs of it."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.environments.base import Environment, ListsActions, OffersTools, Unplayable
from tasks.environments.splits import LENT, played_tasks, shared_tasks
from tasks.runtime.algorithm import Algorithm


def check_environment(config: Config, algorithm: Algorithm, environment: Environment) -> Iterator[str]:
    """What a configuration asks of an environment in vain."""
    yield from _exploration(config, environment)
    yield from _training_tasks(config, algorithm, environment)
    yield from _splits(config, environment)
    yield from _native_calls(config, environment)
    for check in algorithm.checks:
        yield from check(config, environment)
    yield from _playing(config, environment)


def _playing(config: Config, environment: Environment) -> Iterator[str]:
    """Playing in an environment that is known from logged episodes alone."""
    if not isinstance(environment, Unplayable):
        return
    if config.rollout.source == "environment":
        yield (
            f"rollout.source: environment {environment.name} can't be played; set rollout to none, and import "
            "episodes: nlac import FILE"
        )


def _exploration(config: Config, environment: Environment) -> Iterator[str]:
    """Random actions without an environment that lists them."""
    for field in ("exploration", "uniform_until"):
        if getattr(config.rollout, field) and not isinstance(environment, ListsActions):
            yield f"rollout.{field}: {environment.name} does not list its legal actions; set it to 0"


def _training_tasks(config: Config, algorithm: Algorithm, environment: Environment) -> Iterator[str]:
    """An algorithm that trains, with an environment that has nothing to train on."""
    plays = config.rollout.source == "environment" and not isinstance(environment, Unplayable)
    if plays and algorithm.trains and not environment.tasks("train"):
        yield (
            f"environment: {environment.name} has no tasks to train on with these options, only held-out ones; change "
            f"environment.options, or set algorithm to react, which evaluates alone"
        )


def _splits(config: Config, environment: Environment) -> Iterator[str]:
    """A task in two splits, or validation without tasks for it."""
    for shared in shared_tasks(environment):
        yield f"environment: {environment.name}: {shared}; give each split tasks of its own"
    if not config.evaluation.validation_count:
        return
    if not played_tasks(environment, "validation"):
        field = "validation_episodes" if config.evaluation.validation_episodes else "patience"
        yield (
            f"evaluation.{field}: {environment.name} has no validation tasks with these options, and fewer than {LENT} "
            f"training tasks to lend one of; change environment.options, or leave evaluation.{field} empty"
        )


def _native_calls(config: Config, environment: Environment) -> Iterator[str]:
    """Native calls of tools in an environment without tools."""
    if config.roles.policy.tool_calls == "native" and not (
        isinstance(environment, OffersTools) and environment.tools
    ):
        yield f"roles.policy.tool_calls: {environment.name} offers no tools to call; set it to text"
