"""Evaluations of a policy, and its drift from the base model."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Row

Evaluated = Literal["eval", "validation"]

LEAST_COVERAGE = 0.95
"""Of an evaluation by which a policy may be chosen."""


def coverage(episodes: int, failed_episodes: int) -> float | None:
    """Share of an evaluation's episodes that were played to an end; None where there were none."""
    planned = episodes + failed_episodes
    return episodes / planned if planned else None


class Evaluation(Row):
    """One evaluation of one policy on the held-out tasks of one split."""

    TABLE: ClassVar[str] = "evaluations"
    VERSION: ClassVar[int] = 4
    OLDER: ClassVar[Mapping[str, str]] = {"split": "eval"}
    split: Evaluated = Field(
        "eval",
        description="eval: the figures to report; validation: those that early stopping and the champion choose by",
    )
    policy_version: str = Field(description="policy that played")
    environment: str = Field(description="environment name")
    episodes: int = Field(description="episodes played to an end")
    failed_episodes: int = Field(description="episodes with a status other than ok; not counted in the rates")
    coverage: float | None = Field(
        None, description="episodes / (episodes + failed_episodes). Below 0.95 nothing is chosen by this row. NULL: "
        "nothing was to be played, or an older file"
    )  # fmt: skip
    successes: int = Field(description="episodes that succeeded")
    success_rate: float | None = Field(None, description="successes / episodes; NULL without episodes")
    success_low: float | None = Field(None, description="95% Wilson interval, lower end")
    success_high: float | None = Field(None, description="95% Wilson interval, upper end")
    mean_reward: float | None = Field(None, description="mean sum of r")
    mean_game_reward: float | None = Field(None, description="mean sum of the environment's own reward")
    mean_turns: float | None = Field(None, description="mean actions per episode")
    invalid_action_rate: float | None = Field(None, description="invalid actions / actions")
    baseline: Literal["random", "nothing"] | None = Field(
        None, description="a player without a model, on the same tasks: random actions, or doing nothing; NULL: not "
        "measured (evaluation.baseline, or split validation)"
    )  # fmt: skip
    baseline_success_rate: float | None = Field(None, description="its success rate")
    pass_hat: list[float] | None = Field(
        None, description="pass^k for k = 1, 2, ... up to the fewest plays of a task: the mean over tasks of C(c, k) / "
        "C(n, k), with c successes in n plays; NULL if no task was played twice (evaluation.repeats)"
    )  # fmt: skip


class Retention(Row):
    """One general prompt of the retention check: how far the evaluated policy has drifted from the base model."""

    TABLE: ClassVar[str] = "retention"
    prompt_id: str = Field(description="retention/number of the line in the shipped set")
    prompt: str = Field(description="the user's last message")
    policy_version: str = Field(description="the policy compared with the base model")
    tokens: int = Field(description="tokens of the fixed reference answer, which is scored, not generated")
    base_logprob: float | None = Field(None, description="mean log p_base of its tokens (nats per token)")
    policy_logprob: float | None = Field(None, description="the same under the policy")
    drift: float | None = Field(
        None, description="policy_logprob - base_logprob; below 0: the answer became less likely"
    )
    kl: float | None = Field(
        None, description="lower bound of KL(p_base || p_policy) in nats, from the 50 most likely tokens of each, "
        "averaged over the answer's tokens"
    )  # fmt: skip
