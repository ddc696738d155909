"""Values and advantages of what was just played, for policy-gradient algorithms."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Row


class Value(Row):
    """What a state is worth: V(s) by the value head, at the last token of the policy's prompt. Status too_long: its
    prompt, or that of the state after it, does not fit into the context. In SQL the table's name is quoted."""

    TABLE: ClassVar[str] = "values"
    transition_id: str = Field(description="-> transitions (whose state s is acted in)")
    value: float | None = Field(None, description="V(s); NULL: too_long")
    next_value: float | None = Field(
        None, description="V(s') where the episode was cut after this transition; NULL elsewhere"
    )
    policy_version: str = Field(description="the parameters that the head stands on")


class Advantage(Row):
    """How much better a transition's action was than its baseline expects: A = (return_estimate - baseline) / scale.

    Status no_spread: all returns of the group are equal, so A is 0, and nothing is trained on it. Status
    episode_failed: the episode was not played to an end. Status no_value: a state of the episode has none."""

    TABLE: ClassVar[str] = "advantages"
    transition_id: str = Field(description="-> transitions")
    episode_id: str = Field(description="-> episodes")
    group_id: str | None = Field(None, description="-> episodes; NULL: the kind has no groups")
    kind: Literal["group", "gae"] = Field(
        description="group: the episode's return against those of its group; gae: generalised advantage estimation "
        "over the episode's turns"
    )
    return_estimate: float | None = Field(
        None, description="group: R, the sum of r over the episode, the same for all its turns; gae: the lambda-return "
        "from this turn on, which the value head learns; NULL: none could be estimated (see status)"
    )  # fmt: skip
    baseline: float | None = Field(
        None, description="group: the mean R of its episodes; gae: V(s); NULL: there is none (see status)"
    )
    scale: float | None = Field(
        None, description="group: the standard deviation of R in the group + 1e-4; gae: that of all advantages of the "
        "iteration + 1e-4; 1 without policy_gradient.divide_by_std; NULL: see status"
    )  # fmt: skip
    advantage: float | None = Field(None, description="A; NULL: see status")
    group_size: int | None = Field(None, description="group: its episodes that were played to an end")
    group_std: float | None = Field(
        None, description="group: sample standard deviation (n - 1) of their R; NULL: fewer than two"
    )
