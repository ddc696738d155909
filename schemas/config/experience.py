"""Rollout, replay and evaluation."""

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from schemas.config.base import NonNegative, Section, Share


class RolloutSection(Section):
    """Collects experience. `rollout: none` is short for `rollout: {source: none}`."""

    source: Literal["environment", "none"] = Field(
        "environment", description="environment: play episodes; none: play nothing and leave out the stage rollout. "
        "The run then trains on episodes that `nlac import` added to it or to the runs of replay.from_runs"
    )  # fmt: skip
    episodes: PositiveInt = Field(16, description="training episodes per iteration, where `repeats` is 1")
    max_steps: PositiveInt = Field(
        16, description="cap from outside; an episode that reaches it is truncated and still bootstraps"
    )
    first_episodes: PositiveInt | None = Field(
        None, description="episodes of iteration 0; empty: as `episodes`"
    )
    repeats: PositiveInt = Field(
        1, description="how often each task is played: an iteration has episodes x repeats episodes, and those of one "
        "task are a group (column group_id). Algorithm grpo compares the episodes of a group"
    )  # fmt: skip
    exploration: Share = Field(
        0.0, description="share of steps in training episodes that take a uniformly random legal action instead of the "
        "policy's; needs an environment that lists its legal actions"
    )  # fmt: skip
    uniform_until: int = Field(
        0, ge=0, description="before this iteration, rollouts, a' and fresh actions are uniform over the legal "
        "actions, for a policy that can't act yet; needs an environment that lists its legal actions"
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _none(cls, given: Any) -> Any:
        return {"source": "none"} if given == "none" else given

    def uniform_share(self, iteration: int, *, explores: bool) -> float:
        """Share of an iteration's actions drawn uniformly; `explores` is true in a training rollout."""
        return 1.0 if iteration < self.uniform_until else self.exploration if explores else 0.0


class ReplaySection(Section):
    """Prioritised replay over all iterations (Schaul et al. 2016)."""

    transitions: PositiveInt = Field(48, description="transitions drawn per iteration, with replacement")
    alpha: NonNegative = Field(0.6, description="exponent of the priorities; 0 is uniform")
    beta: NonNegative = Field(0.4, description="exponent of the importance weights; 1 corrects fully")
    beta_until: PositiveInt | None = Field(
        None,
        description="iteration in which beta has risen to 1, linearly from iteration 0 on; empty: constant",
    )
    epsilon: PositiveFloat = Field(
        0.01, description="added to every priority, so that every transition can be drawn"
    )
    max_age: int | None = Field(
        None, ge=0, description="how many iterations a transition of this run stays in replay after its own; 0: its "
        "own iteration only; empty: no limit"
    )  # fmt: skip
    from_runs: list[str] = Field(
        [], description="further runs under the same data root, on the same environment, whose training transitions "
        "join replay at any age. Name finished runs only: a growing run changes what is drawn from"
    )  # fmt: skip

    @model_validator(mode="after")
    def _names_each_run_once(self) -> "ReplaySection":
        if len(set(self.from_runs)) < len(self.from_runs):
            raise ValueError("from_runs: a run is named twice; name each once")
        return self

    def beta_at(self, iteration: int) -> float:
        """Exponent of the importance weights in an iteration: beta in iteration 0, 1 from beta_until on."""
        if self.beta_until is None:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(iteration / self.beta_until, 1.0)


class EvaluationSection(Section):
    """Evaluation on held-out tasks: eval tasks for the figures to report, validation tasks for choosing a policy."""

    episodes: PositiveInt = Field(8, description="episodes per evaluation, over the eval tasks in turn")
    repeats: PositiveInt = Field(
        1, description="how often each episode is played, for pass^k: the chance that k plays of a task all succeed"
    )  # fmt: skip
    baseline: bool = Field(
        True, description="also measure a baseline, once: random actions, where the environment lists its actions or "
        "its action format can be sampled; otherwise doing nothing"
    )  # fmt: skip
    every: PositiveInt = Field(1, description="evaluate after every n-th iteration")
    patience: PositiveInt | None = Field(
        None, description="nlac/training stops after this many evaluations in a row without a new best success rate on "
        "the validation tasks; empty: never"
    )  # fmt: skip
    validation_episodes: int | None = Field(
        None, ge=0, description="episodes per evaluation over the validation tasks, by which early stopping and the "
        "champion choose; empty: as many as `episodes` where `patience` is set, otherwise none, and then no policy "
        "becomes champion"
    )  # fmt: skip
    retention: bool = Field(
        False, description="also measure the policy's drift from the base model on general prompts (table retention); "
        "needs a policy engine that plays the model in training and gives top-k scores"
    )  # fmt: skip

    @model_validator(mode="after")
    def _can_stop(self) -> "EvaluationSection":
        if self.patience is not None and self.validation_episodes == 0:
            raise ValueError(
                "patience: nlac/training stops by validation figures, and validation_episodes is 0; leave it empty or "
                "raise it"
            )
        return self

    @property
    def validation_count(self) -> int:
        """Episodes per evaluation over the validation tasks, with an empty `validation_episodes` resolved."""
        if self.validation_episodes is not None:
            return self.validation_episodes
        return self.episodes if self.patience is not None else 0
