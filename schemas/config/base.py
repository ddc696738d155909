"""What all sections have."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["policy", "predict", "bootstrap", "correct", "evaluate", "refine"]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown fields are errors, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)
