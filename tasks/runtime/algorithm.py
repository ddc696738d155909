"""What an algorithm is: a value that names its stages and what those do differently under it.

The algorithms themselves are in `tasks.algorithms`, one file each.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from schemas.config import Config, Role
from schemas.rows import Advantage, Critique, Future, Priority
from tasks.environments.base import Environment, Task
from tasks.runtime.stage import Bound, Inputs

if TYPE_CHECKING:
    from tasks.datasets.drawn_transitions import DrawnTransition
    from tasks.datasets.example import Example
    from tasks.improvement.critique import Candidate
    from tasks.improvement.refine import Improved
    from tasks.runtime.context import StageContext
    from tasks.runtime.lineage import Resolver
    from tasks.training.fine_tuning import Source
    from tasks.training.records import TrainingResult

Check = Callable[[Config, Environment], Iterator[str]]
"""Yields one line for each reason why the algorithm can't run a configuration."""


Advantages = Callable[["StageContext"], list[Advantage]]
"""From the episodes and transitions of an iteration's rollout to a row for each transition."""


@dataclass(frozen=True)
class FutureSource:
    """Where the futures that a critique reads come from.

    Attributes:
        draw: (context, transition, task, action, critique id) -> k futures.
        parameters: whose parameters write them.
        role: the role whose requests they cost.
        count: k where `improvement.futures` is empty.
        requests: requests of one future, at most.
    """

    draw: Callable[["StageContext", "DrawnTransition", Task, "Candidate", str], Awaitable[list[Future]]]
    parameters: Literal["critic", "policy"]
    role: Role
    count: int
    requests: Callable[[Config], int]


@dataclass(frozen=True)
class VerdictSource:
    """How the evaluator's verdict is read.

    Attributes:
        read: (context, critique without a verdict, transition, futures) -> critique.
        requests: completions of one verdict.
        scores: texts scored for one verdict.
        judges: whether it says yes or no; else it is a value in words alone.
    """

    read: Callable[["StageContext", Critique, "DrawnTransition", list[str]], Awaitable[Critique]]
    requests: int
    scores: Callable[[Config], int]
    judges: bool = True


@dataclass(frozen=True)
class Method:
    """How critiqued actions become the action to distil.

    Attributes:
        actions: the numbers of the actions critiqued at a state; [None] for one action without a number.
        improve: (context, critiques of a state, transition, task, futures by critique) -> what came of it.
        bound: at most what stage refinement costs.
    """

    actions: Callable[[Config], Sequence[int | None]]
    improve: Callable[
        ["StageContext", Sequence[Critique], "DrawnTransition", Task, Mapping[str, list[str]]],
        Awaitable["Improved"],
    ]
    bound: Callable[[Config, "Algorithm"], Bound]


@dataclass(frozen=True)
class Improvement:
    """How an action is improved: where futures come from, how the verdict on them is read, what is made of it."""

    futures: FutureSource
    verdict: VerdictSource
    method: Method


@dataclass(frozen=True)
class CriticRows:
    """What stage critic-sft trains the critic on.

    Attributes:
        table: where the rows' ids are from.
        stage: writes this table.
        read: (resolver) -> the committed tables that they, and the policy rows mixed in, are made of.
        load: (context) -> examples, and the policy rows to mix in; raises StageFailed where there is no example.
        remake: (context) -> the examples, also where they are mixed into the policy's training.
        scores: whether they are scored before the first step, for priorities.
        priorities: (context, result of the training) -> the priorities of the next draws.
    """

    table: str
    stage: str
    read: Callable[["Resolver"], Inputs]
    load: Callable[["StageContext"], tuple[list["Example"], "Source"]]
    remake: Callable[["StageContext"], list["Example"]]
    scores: Callable[[Config], bool]
    priorities: Callable[["StageContext", "TrainingResult"], list[Priority]]


@dataclass(frozen=True)
class PolicyRows:
    """What stage policy-distillation trains the policy on.

    Attributes:
        table: where the rows' ids are from.
        read: (resolver) -> the committed tables that they are made of.
        load: (context) -> examples and metrics.
        remake: (context, ids) -> the examples that were trained on, and perhaps more.
        count: examples, at most.
        may_be_none: whether there may be no row to train on; then the policy stays as it is. Else that is an error.
    """

    table: str
    read: Callable[["Resolver"], Inputs]
    load: Callable[["StageContext"], tuple[list["Example"], dict[str, float]]]
    remake: Callable[["StageContext", set[str]], list["Example"]]
    count: Callable[[Config], int]
    may_be_none: bool = False


@dataclass(frozen=True)
class Algorithm:
    """One algorithm.

    Attributes:
        name: as the configuration names it.
        summary: one line for the documentation.
        stages: in the order in which they run.
        critic_rows: None where no critic is trained.
        improvement: None where no action is improved.
        advantages: None where sampled actions are not compared with a baseline.
        policy_rows: None where no policy is trained.
        checks: what it needs of configuration and environment.
    """

    name: str
    summary: str
    stages: tuple[str, ...]
    critic_rows: CriticRows | None = None
    improvement: Improvement | None = None
    advantages: Advantages | None = None
    policy_rows: PolicyRows | None = None
    checks: tuple[Check, ...] = ()

    @property
    def has_critic(self) -> bool:
        """Whether it trains a critic beside the policy."""
        return "critic-sft" in self.stages

    @property
    def has_successor(self) -> bool:
        """Whether that critic is a successor model, which writes."""
        return "bellman-targets" in self.stages

    @property
    def has_values(self) -> bool:
        """Whether it trains a value head V(s) beside the policy."""
        return "values" in self.stages

    @property
    def has_action_values(self) -> bool:
        """Whether its critic is a value head Q(s, a)."""
        return "td-targets" in self.stages

    @property
    def trains(self) -> bool:
        """Whether its policy ever changes."""
        return "policy-distillation" in self.stages

    @property
    def drawing_stage(self) -> str:
        """The stage that draws transitions from replay."""
        return "bellman-targets" if "bellman-targets" in self.stages else "replay-draw"

    @property
    def improves(self) -> Improvement:
        """How it improves an action.

        Raises:
            ValueError: it improves none.
        """
        if self.improvement is None:
            raise ValueError(f"algorithm {self.name} improves no action")
        return self.improvement

    @property
    def estimates(self) -> Advantages:
        """How it rates the actions just played.

        Raises:
            ValueError: it does not.
        """
        if self.advantages is None:
            raise ValueError(f"algorithm {self.name} has no advantages")
        return self.advantages

    @property
    def critic(self) -> CriticRows:
        """What its critic is trained on.

        Raises:
            ValueError: it trains none.
        """
        if self.critic_rows is None:
            raise ValueError(f"algorithm {self.name} trains no critic")
        return self.critic_rows

    @property
    def distils(self) -> PolicyRows:
        """What its policy is trained on.

        Raises:
            ValueError: it trains none.
        """
        if self.policy_rows is None:
            raise ValueError(f"algorithm {self.name} trains no policy")
        return self.policy_rows

    def future_count(self, config: Config) -> int:
        """k: futures that a critique reads."""
        return config.improvement.futures or self.improves.futures.count

    def mix(self, config: Config, section: Literal["critic", "policy", "warm_start"]) -> float:
        """Share of the other role's rows in a batch, with the default resolved; 0 without a critic."""
        if not self.has_critic or section == "warm_start":
            return 0.0
        share: float | None = getattr(config, section).mix
        return share if share is not None else (0.25 if config.parameters == "shared" else 0.0)
