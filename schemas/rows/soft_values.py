"""Actions sampled at drawn transitions, and what a scalar critic says of them (algorithm sac)."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Generation, Row


class SampledAction(Row):
    """One action that the policy sampled at a drawn transition. Status action_failed: the policy wrote nothing.
    Status invalid_action: the environment would not accept it, so the policy is not trained on it."""

    TABLE: ClassVar[str] = "sampled_actions"
    action_id: str = Field(description="sample_id/place/number")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions")
    place: Literal["state", "next_state"] = Field(
        description="state: a ~ pi(.|s), to train the policy on; next_state: a' ~ pi(.|s'), for the TD target"
    )
    action_text: str = Field(description="the action, whole text")
    thought: str = Field(description="its thought")
    action: str = Field(description="its environment action")
    generation: Generation | None = Field(None, description="provenance; NULL: drawn uniformly")
    reasoning: str | None = Field(None, description="its hidden chain of thought")


class TdTarget(Row):
    """What Q(s,a) of a drawn transition is to become: y = r + discount * V(s'), with V = 0 where the episode ended.

    V(s') = temperature * log mean_j exp(Q_bar(s', a'_j) / temperature) over the sampled a'_j, with the target
    parameters. Status no_next_value: no a' has a value."""

    TABLE: ClassVar[str] = "td_targets"
    target_id: str = Field(description="same as its sample_id")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions")
    terminal: bool = Field(description="done: y is r")
    next_values: list[float] = Field(description="Q_bar(s', a'_j); empty where terminal")
    soft_value: float | None = Field(None, description="V(s'); NULL: terminal, or see status")
    target: float | None = Field(None, description="y; NULL: see status")
    target_version: str = Field(description="the target parameters that Q_bar stands on")


class ActionValue(Row):
    """What the new critic says of an action sampled at s, and how much it counts in the policy's loss. Status
    too_long: its prompt does not fit into the context."""

    TABLE: ClassVar[str] = "action_values"
    action_id: str = Field(description="-> sampled_actions")
    sample_id: str = Field(description="-> replay_samples")
    value: float | None = Field(None, description="Q(s, a); NULL: too_long")
    weight: float | None = Field(
        None, description="n * softmax(Q(s, .) / temperature) over the n valued actions of the state: 1 on average; "
        "NULL: too_long"
    )  # fmt: skip
    critic_version: str = Field(description="the critic that Q stands on")
