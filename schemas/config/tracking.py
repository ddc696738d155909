"""What is shown of a run beside its tables."""

from pydantic import Field, NonNegativeInt

from schemas.config.base import Section


class TrackingSection(Section):
    """What MLflow is told. Changing this section makes no stage stale."""

    traced_episodes: NonNegativeInt = Field(
        4, description="episodes of each split that every iteration leaves in MLflow's trace viewer, spread evenly "
        "over those played, so that the eval episodes are of the same tasks each time. 0: none"
    )  # fmt: skip
