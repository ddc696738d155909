"""What a stage is, to the pipeline: its name, what determines its output, and the function that computes
it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from schemas.config import Config
from schemas.rows import TABLES, Row
from storage.store import Committed
from tasks.engines.base import Adapter

if TYPE_CHECKING:
    from tasks.context import StageContext

Pool = Literal["orchestration", "inference", "training"]


class StageFailed(Exception):
    """A stage can't give a usable output; nothing is committed. The message says what to do."""


@dataclass(frozen=True)
class Inputs:
    """What a stage reads: committed tables, and the adapter behind each use of a model (None: the base
    model)."""

    tables: dict[str, list[Committed]] = field(default_factory=dict)
    adapters: dict[str, Adapter | None] = field(default_factory=dict)
    files: dict[str, Committed] = field(default_factory=dict)

    def scan(self, table: str) -> pl.LazyFrame:
        """All committed parts of an input table as one lazy frame."""
        return pl.concat([c.scan(table) for c in self.tables[table]])

    def rows(self, table: str) -> list[Any]:
        """The same, as row models."""
        model = TABLES[table]
        return [model.model_validate(row) for row in self.scan(table).collect().iter_rows(named=True)]


@dataclass
class Output:
    """What a stage made. Training stages also leave adapter folders in the context's workdir and name them
    here."""

    tables: dict[str, list[Row]]
    rows_in: int
    adapters: dict[str, str] = field(default_factory=dict)  # kind -> folder below the workdir
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One stage. `run` is a plain coroutine: (context, inputs) -> output; it commits nothing and knows no
    Prefect."""

    name: str
    version: int
    pool: Pool
    tables: tuple[type[Row], ...]
    config: tuple[str, ...]  # dotted paths of the configuration that its output depends on
    roles: tuple[str, ...]  # roles it plays, for engines, prompts and the plan
    templates: tuple[str, ...]  # prompt templates it renders
    inputs: Callable[["Resolver"], Inputs]
    run: Callable[["StageContext", Inputs], Awaitable[Output]]


@dataclass(frozen=True)
class Resolver:
    """Finds a stage's inputs in the store. Which parameters play what in iteration i is written down here,
    once.

    | use | shared | separate |
    |---|---|---|
    | rollout, a' | theta_i | phi_i |
    | d', backup, corrector of targets | theta_bar_i | psi_bar_i |
    | critic SFT starts from | theta_i | psi_i |
    | futures | theta'_i, after critic SFT | psi_{i+1} |
    | fresh action to improve | theta'_i | phi_i |
    | evaluator, refiner, corrector of thoughts | theta'_i | the base model |
    | distillation starts from, gives | theta'_i, theta_{i+1} | phi_i, phi_{i+1} |
    | target moves on | every step of both stages | critic steps only |
    """

    config: Config
    iteration: int
    committed: Callable[
        [str, int], Committed
    ]  # (stage, iteration); raises StageFailed when it is not committed

    @property
    def shared(self) -> bool:
        return self.config.parameters == "shared"

    def here(self, stage: str) -> Committed:
        """A stage of this iteration."""
        return self.committed(stage, self.iteration)

    def upto(self, stage: str, last: int) -> list[Committed]:
        """A stage of iterations 0..last, in order."""
        return [self.committed(stage, i) for i in range(last + 1)]

    def last(self, stage: str, iteration: int) -> list[Committed]:
        """A stage of one earlier iteration; nothing before iteration 0."""
        return [self.committed(stage, iteration)] if iteration >= 0 else []

    def optimizer(self, section: str, stage: str, iteration: int) -> dict[str, Committed]:
        """The optimizer state a training stage carries on from, if it carries and there is one."""
        if getattr(self.config, section).optimizer == "reset" or iteration < 0:
            return {}
        return {"optimizer": self.committed(stage, iteration)}

    def adapter(self, stage: str, kind: str, iteration: int) -> Adapter | None:
        """An adapter that a training stage made; None before iteration 0: the base model."""
        if iteration < 0:
            return None
        made = self.committed(stage, iteration)
        entry = made.manifest.adapters[kind]
        return Adapter(entry.version, made.path / entry.folder, entry.digest)

    def policy(self) -> Adapter | None:
        """theta_i or phi_i: acts in the rollout and writes a'."""
        return self.adapter("policy-distillation", "policy", self.iteration - 1)

    def target(self) -> Adapter | None:
        """theta_bar_i or psi_bar_i: writes d' and the backup, corrects targets."""
        return self.adapter(
            "policy-distillation" if self.shared else "critic-sft", "target", self.iteration - 1
        )

    def critic_start(self) -> Adapter | None:
        """Where critic SFT starts from."""
        return self.policy() if self.shared else self.adapter("critic-sft", "critic", self.iteration - 1)

    def critic(self) -> Adapter | None:
        """The new critic: writes futures."""
        return self.adapter("critic-sft", "critic", self.iteration)

    def actor(self) -> Adapter | None:
        """Writes the fresh action to improve."""
        return self.critic() if self.shared else self.policy()

    def improver(self) -> Adapter | None:
        """Evaluator, refiner and corrector of thoughts."""
        return self.critic() if self.shared else None
