"""What `nlac status` finds: runs and their stages, what failed, and Prefect's runs."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.cli.shards import ShardsStanding
from schemas.manifest import RoleCost
from tasks.runtime.progress import ProgressState

StageState = Literal["committed", "running", "waiting", "failed"]
RunState = Literal["running", "finished", "stopped"]


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class StageStanding(_Shown):
    """One stage of an iteration. Seconds left are those of its present phase, at the rate so far; of a waiting stage,
    what it took in the last iteration that has it. A running stage whose items are dealt out has shards."""

    stage: str
    state: StageState
    seconds: float | None = None
    seconds_left: float | None = None
    progress: ProgressState | None = None
    shards: ShardsStanding | None = None


class Failure(_Shown):
    """What failed, why, and the commands that go on. Without a stage only the iteration's end is missing."""

    stage: str | None
    reason: str
    commands: list[str]


class RunStanding(_Shown):
    """A run, in its newest iteration.

    Attributes:
        holder: who writes it now; None: nobody.
        last_iteration: the last one that a running `nlac/training` wants.
        roles: what each role's requests cost in this iteration so far.
        rows: rows whose status is not ok, of the stages committed in this iteration, by table and status.
        faults: of the running stage, failed and repeated requests by kind.
        attempts: failed attempts at unfinished stages, by kind.
        still_seconds: since anything moved.
    """

    run: str
    iteration: int
    state: RunState
    holder: str | None = None
    last_iteration: int | None = None
    stages: list[StageStanding] = []
    seconds_left: float | None = None
    run_seconds_left: float | None = None
    loss: float | None = None
    roles: dict[str, RoleCost] = {}
    rows: dict[str, int] = {}
    faults: dict[str, int] = {}
    attempts: dict[str, int] = {}
    still_seconds: float | None = None
    failure: Failure | None = None

    @property
    def stage(self) -> StageStanding | None:
        """The running stage."""
        return next((stage for stage in self.stages if stage.state == "running"), None)


class FlowState(_Shown):
    """What a run of Prefect says of itself."""

    model_config = ConfigDict(extra="ignore")

    message: str | None = None


class FlowRun(_Shown):
    """A run of Prefect that is not over, or that failed."""

    model_config = ConfigDict(extra="ignore")

    id: str
    name: str
    state_name: str | None = None
    start_time: datetime | None = None
    deployment_id: str | None = Field(None, exclude=True)
    tags: list[str] = Field([], exclude=True)
    end_time: datetime | None = Field(None, exclude=True)
    state: FlowState = Field(FlowState(), exclude=True)
    parameters: dict[str, Any] = Field({}, exclude=True)
