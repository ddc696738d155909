"""The base of all configuration sections."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["policy", "predict", "bootstrap", "correct", "evaluate", "refine"]
Player = Role | Literal["environment_model"]
"""Who answers a request: a role, or the model that speaks in the environment."""

Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections. Unknown fields are errors; sections are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)
