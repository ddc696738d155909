"""What a stage does when an engine or an environment fails."""

from pydantic import Field, NonNegativeInt, PositiveFloat

from schemas.config.base import Section, Share


class FaultsSection(Section):
    """Faults of engines and environments. Changing this section makes no stage stale."""

    max_failed_share: Share = Field(
        0.05, description="a stage fails where an engine or an environment failed more than this share of a table's "
        "rows, and 3 of them or more. Nothing is committed, finished requests are kept. Malformed answers never count. "
        "1: it never fails for that"
    )  # fmt: skip
    retries: NonNegativeInt = Field(
        3, description="how often an iteration runs a stage again after such a failure, after a server that ended "
        "or does not answer, or after the death of its process"
    )  # fmt: skip
    retry_seconds: PositiveFloat = Field(
        30.0, description="wait before the first of them; each further wait is twice as long"
    )
