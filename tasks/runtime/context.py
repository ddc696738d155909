"""What a stage function is given: configuration, inputs, prompts, and one way to ask a role for text."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from schemas.config import Config
from schemas.rows import Generation
from tasks.engines.request_journal import RequestJournal
from tasks.environments import check_environment_model, make_environment
from tasks.environments.base import Environment, asks_model
from tasks.prompting.rendering import PromptRenderer
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.environment_model import EnvironmentModel
from tasks.runtime.progress import Progress
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Inputs

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Workspace:
    """Where a stage leaves files.

    Attributes:
        folder: the staging folder; adapters go below it.
        name: of the folder to be committed; it names the adapter versions that the stage makes.
        checkpoint: file from which a killed training stage continues.
    """

    folder: Path
    name: str
    checkpoint: Path


@dataclass
class StageContext:
    """A stage's surroundings, built by `tasks.pipeline.runner`.

    Attributes:
        config: the resolved configuration.
        algorithm: the one that the configuration names.
        stage: the stage's name.
        iteration: its iteration.
        inputs: committed tables and adapters.
        roles: asks roles for text.
        workspace: where files go; None where nothing is committed.
        progress: told of finished items.
        log: the stage's log.
        trained_tokens: tokens that a training stage has trained on.
        spoken: by episode, the provenance of what the environment model has said since it was last taken out.
    """

    config: Config
    algorithm: Algorithm
    stage: str
    iteration: int
    inputs: Inputs
    roles: RoleClient
    workspace: Workspace | None = None
    progress: Progress = field(default_factory=lambda: Progress("stage"))
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("nlac"))
    trained_tokens: int = 0
    spoken: dict[str, list[Generation]] = field(default_factory=dict)

    @cached_property
    def environment(self) -> Environment:
        """The stage's own instance, for formats, instructions and templates."""
        return self.new_environment()

    @cached_property
    def prompts(self) -> PromptRenderer:
        """Renders every role's prompt."""
        return PromptRenderer(self.config, self.environment)

    def new_environment(self, episode: str = "") -> Environment:
        """A fresh environment, for one episode; `episode` keys what the environment model says in it.

        Raises:
            UnusableEnvironment: it can't be made, or its model is missing.
        """
        environment = make_environment(self.config.environment)
        check_environment_model(self.config.environment, environment)
        if asks_model(environment):
            environment.connect(EnvironmentModel(self.roles, self.spoken, episode))
        return environment

    async def map(self, items: Iterable[T], work: Callable[[T], Awaitable[R]], unit: str) -> list[R]:
        """Work on all items at once, in order, and count progress. Engines bound their own concurrency."""
        listed = list(items)
        self.progress.begin(len(listed), unit)

        async def one(item: T) -> R:
            result = await work(item)
            self.progress.advance()
            return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in listed]
        return [task.result() for task in tasks]


def stage_context(
    config: Config,
    algorithm: Algorithm,
    stage: str,
    inputs: Inputs,
    cache_dir: Path,
    *,
    iteration: int = 0,
    journal: RequestJournal | None = None,
) -> StageContext:
    """A context outside the pipeline: nothing is committed or reported.

    Args:
        config: the resolved configuration.
        algorithm: the one that it names.
        stage: the stage's name.
        inputs: committed tables and adapters.
        cache_dir: for engines' own caches.
        iteration: its iteration.
        journal: keeps finished requests; None keeps nothing.
    """
    roles = RoleClient(config, stage, iteration, inputs.adapters, cache_dir, journal)
    return StageContext(config, algorithm, stage, iteration, inputs, roles)
