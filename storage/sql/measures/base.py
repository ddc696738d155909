"""What the views that measure share."""

from collections.abc import Mapping

from pydantic import BaseModel, Field


class Measured(BaseModel):
    """A row about an iteration."""

    run: str = Field(description="run")
    iteration: int = Field(description="iteration")


Views = Mapping[str, tuple[type[Measured], str]]
"""View -> the model of its rows, and its query; the model gives the columns their order and types."""
