"""What a stage is to the pipeline: its name, what determines its output, and the function that computes it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from schemas.config import Config, Role
from schemas.rows import TABLES, Row
from storage.store import Committed, scan_parts
from tasks.engines.protocol import Adapter

if TYPE_CHECKING:
    from tasks.runtime.algorithm import Algorithm
    from tasks.runtime.context import StageContext
    from tasks.runtime.lineage import Resolver

Pool = Literal["orchestration", "inference", "training"]


class StageFailed(Exception):
    """A stage can't give a usable output; nothing is committed. The message names the remedy."""


class StageInterrupted(StageFailed):
    """A stage failed by a fault that may pass: a server that ended, an environment that does not answer. The same
    stage, run again, goes on from the requests that were answered."""


@dataclass(frozen=True)
class Inputs:
    """What a stage reads.

    Attributes:
        tables: committed parts of each table.
        adapters: by use, the parameters that play; None is the base model.
        files: by use, the committed folder that holds `<use>.pt`.
    """

    tables: dict[str, list[Committed]] = field(default_factory=dict)
    adapters: dict[str, Adapter | None] = field(default_factory=dict)
    files: dict[str, Committed] = field(default_factory=dict)

    def scan(self, table: str) -> pl.LazyFrame:
        """All committed parts of an input table as one lazy frame."""
        return scan_parts(self.tables[table], table)

    def rows(self, table: str) -> list[Any]:
        """All rows of an input table as row models; none where the stage reads no part of it."""
        if not self.tables[table]:
            return []
        model = TABLES[table]
        return [model.model_validate(row) for row in self.scan(table).collect().iter_rows(named=True)]


@dataclass
class Output:
    """What a stage made.

    Attributes:
        tables: rows of each table that the stage declares.
        rows_in: items that it set out to process.
        adapters: kind -> folder below the workspace.
        metrics: counts and rates, for people and MLflow.
    """

    tables: Mapping[str, Sequence[Row]]
    rows_in: int
    adapters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """At most what a stage costs in iteration 0.

    Attributes:
        requests: texts asked for, and verdicts to be scored.
        tokens: completion tokens (inference), or label tokens trained on (training).
        note: what the numbers are made of.
    """

    requests: int
    tokens: int
    note: str


def episode_bound(config: Config, episodes: int) -> Bound:
    """At most what playing episodes costs: a request per step, and one of the environment model if one speaks."""
    turns, model = config.rollout.max_steps, config.environment.model
    note = f"episodes x {turns} steps at most"
    tokens = config.roles.policy.max_tokens
    if model is None:
        return Bound(episodes * turns, episodes * turns * tokens, note)
    note += ", an answer of the environment model to each"
    return Bound(2 * episodes * turns, episodes * turns * (tokens + model.max_tokens), note)


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: of its folder, its deployment and its row in every listing.
        version: raised when its code computes something else.
        pool: the kind of work pool that it runs on.
        reads: tables that it may read.
        writes: tables that it writes.
        adapters: kinds of adapters that it may leave.
        config: dotted paths of the configuration that its output depends on.
        roles: roles that it plays, for engines and prompts.
        templates: prompt templates that it renders.
        inputs: finds its inputs.
        bound: at most what it costs.
        run: computes it. A plain coroutine that commits nothing and knows no Prefect.
        item: what its work on an item gives, rows alone (`tasks.runtime.item_tables`), where its items may be dealt
            out to shards; else None.
    """

    name: str
    version: int
    pool: Pool
    reads: tuple[type[Row], ...]
    writes: tuple[type[Row], ...]
    config: tuple[str, ...]
    roles: tuple[Role, ...]
    templates: tuple[str, ...]
    inputs: Callable[["Resolver"], Inputs]
    bound: Callable[[Config, "Algorithm"], Bound]
    run: Callable[["StageContext"], Awaitable[Output]]
    adapters: tuple[str, ...] = ()
    item: type | None = None
