"""Advantages of the actions just played, for policy-gradient algorithms."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Row


class Advantage(Row):
    """How much better a transition's action was than its baseline expects: A = (return_estimate - baseline) / scale.

    Status no_spread: all returns of the group are equal, so A is 0, and nothing is trained on it. Status
    episode_failed: the episode was not played to an end."""

    TABLE: ClassVar[str] = "advantages"
    transition_id: str = Field(description="-> transitions")
    episode_id: str = Field(description="-> episodes")
    group_id: str | None = Field(None, description="-> episodes; NULL: the kind has no groups")
    kind: Literal["group"] = Field(description="group: the episode's return against those of its group")
    return_estimate: float | None = Field(
        None, description="group: R, the sum of r over the episode, the same for all its turns; NULL: the episode "
        "failed"
    )  # fmt: skip
    baseline: float | None = Field(
        None, description="group: the mean R of its episodes; NULL: the episode failed"
    )
    scale: float | None = Field(
        None, description="group: the standard deviation of R in the group + 1e-4, or 1 "
        "(policy_gradient.divide_by_std); NULL: the episode failed"
    )  # fmt: skip
    advantage: float | None = Field(None, description="A; NULL: the episode failed")
    group_size: int | None = Field(None, description="episodes of the group that were played to an end")
    group_std: float | None = Field(
        None, description="sample standard deviation (n - 1) of their R; NULL: fewer than two"
    )
