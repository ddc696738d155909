"""What a stage function is given: configuration, inputs, prompts, and one way to ask a role for text."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from schemas.config import Config
from schemas.rows import Generation
from schemas.shards import Shard
from tasks.engines.request_journal import RequestJournal
from tasks.environments import check_environment_model, make_environment
from tasks.environments.base import Environment, asks_model
from tasks.prompting.rendering import PromptRenderer
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.dealing import Merging, ShardDone, Sharding, deal
from tasks.runtime.environment_model import EnvironmentModel
from tasks.runtime.progress import Progress
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Inputs, StageFailed

T = TypeVar("T")
R = TypeVar("R")

OPEN = 4096
"""Items of a stage in work at a time: far more than an engine answers at once, and few enough for memory."""


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
        sharding: which of the items that may be dealt out this run works on; None: on all.
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
    sharding: Sharding = None

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

    def dealt(self, items: Iterable[T], cost: Callable[[T], float]) -> list[T]:
        """The items that `map`, called with the same arguments, works on in this run: what they need is read for them
        alone."""
        listed = list(items)
        return [listed[number] for number in self._numbers(listed, cost)]

    def _numbers(self, items: Sequence[T], cost: Callable[[T], float]) -> Sequence[int]:
        if isinstance(self.sharding, Shard):
            return deal([cost(item) for item in items], self.sharding.count)[self.sharding.number - 1]
        return range(len(items) if self.sharding is None else 0)

    async def map(
        self,
        items: Iterable[T],
        work: Callable[[T], Awaitable[R]],
        unit: str,
        cost: Callable[[T], float] | None = None,
    ) -> list[R]:
        """Work on all items at once, in order, and count progress. Engines bound their own concurrency.

        Args:
            items: what to work on.
            work: gives what the stage's `item` says, where the items may be dealt out.
            unit: what an item is called.
            cost: estimates an item's cost, in any unit. Given, the items may be dealt out to shards. A stage has at
                most one such call.

        Raises:
            ShardDone: this run is a shard's.
            StageFailed: this run merges shards that are not of these items.
        """
        listed = list(items)
        if cost is None or self.sharding is None:
            return await self._work(listed, work, unit)
        if isinstance(self.sharding, Merging):
            found = self.sharding.results
            if found.keys() != set(range(len(listed))):
                raise StageFailed(
                    f"{self.stage}: its shards hold {len(found)} items, the stage has {len(listed)}: another version "
                    "of the program computed them; remove the run's folder .shards, and run the stage again"
                )
            self.progress.begin(len(listed), unit)
            self.progress.advance(len(listed))
            return [found[number] for number in range(len(listed))]
        numbers = self._numbers(listed, cost)
        results = await self._work([listed[number] for number in numbers], work, unit)
        raise ShardDone(dict(zip(numbers, results, strict=True)))

    async def _work(self, items: Sequence[T], work: Callable[[T], Awaitable[R]], unit: str) -> list[R]:
        self.progress.begin(len(items), unit)
        results: dict[int, R] = {}
        waiting = iter(enumerate(items))

        async def one_after_another() -> None:
            for number, item in waiting:
                results[number] = await work(item)
                self.progress.advance()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(OPEN, len(items))):
                group.create_task(one_after_another())
        return [results[number] for number in range(len(items))]


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
