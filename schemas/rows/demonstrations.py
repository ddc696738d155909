"""Demonstrated answers for a warm start."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.rows.base import Row


class PastTurn(BaseModel):
    """One past step of a demonstrated state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    observation: str = Field(description="what was seen")
    answer: str = Field(description="what was answered, whole")


class TriedAction(BaseModel):
    """An action and its critique, as the refiner sees them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action_text: str = Field(description="the action")
    optimal: bool = Field(description="the verdict")
    critique: str = Field(description="the reason for the verdict")


class Demonstration(Row):
    """One demonstrated answer of a role, for the warm start. The columns from `role` on are those of the Parquet file
    that warm_start.file names."""

    TABLE: ClassVar[str] = "demonstrations"
    demonstration_id: str = Field(description="run/demonstration/number of the row in the file")
    role: Literal["policy", "predict", "bootstrap", "evaluate", "refine"] = Field(description="who answers")
    turns: list[PastTurn] = Field([], description="the state's past turns")
    observation: str = Field(description="the observation to act on")
    action_text: str | None = Field(None, description="predict, bootstrap, evaluate: the action in question")
    next_observation: str | None = Field(None, description="bootstrap: what it led to")
    reward: float | None = Field(None, description="bootstrap: r")
    next_action_text: str | None = Field(None, description="bootstrap: a'; NULL at the end of an episode")
    next_future: str | None = Field(None, description="bootstrap: d'; NULL with a'")
    futures: list[str] | None = Field(None, description="evaluate: the futures that the evaluator reads")
    attempts: list[TriedAction] | None = Field(None, description="refine: the actions tried so far")
    thought: str = Field("", description="answer of policy, refine, predict, bootstrap: its thought")
    answer: str = Field(
        description="the environment action (policy, refine), the description (predict, bootstrap), the reason "
        "(evaluate)"
    )
    optimal: bool | None = Field(None, description="answer of evaluate: its verdict")
