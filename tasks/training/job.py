"""What a training is given: plain values that need no torch, so that they can be handed to another process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.config import (
    AnchorSection,
    FineTuningSection,
    ModelSection,
    PolicyGradientSection,
    TrainerSection,
)
from tasks.datasets.example import Example
from tasks.training.records import StepRecord

# Called after each step, with the number of steps there will be. A resumed training reports its earlier steps too.
OnStep = Callable[[StepRecord, int], None]


@dataclass(frozen=True)
class MixedRows:
    """Rows that take a share of every batch beside the stage's own."""

    field: str  # of the configuration, which sets the share
    share: float
    examples: Sequence[Example]


@dataclass(frozen=True)
class Rows:
    """Training rows by origin."""

    main: Sequence[Example]  # the stage's own; each is trained on once per epoch
    mixed: Sequence[MixedRows] = ()  # the other role's first


@dataclass(frozen=True)
class Start:
    """What earlier stages left."""

    parameters: Path | None = None  # adapter or checkpoint, as `model.train` says; None: the model itself
    target: Path | None = None  # target parameters; None: those started from
    optimizer: Path | None = None  # optimizer state; None: a fresh one
    anchor: Path | None = None  # what the KL anchor ties to, as `parameters`
    value_head: Path | None = None  # its file; None: a new one, where there is one at all
    target_value_head: Path | None = None  # that of the target; None: the one started from


@dataclass(frozen=True)
class PolicyGradient:
    """The loss of sampled turns."""

    section: PolicyGradientSection = field(default_factory=PolicyGradientSection)
    budget: int = 1  # tokens that an episode may have (normalisation dr_grpo)


@dataclass(frozen=True)
class ValueLoss:
    """The loss of a value head, which is left as `value_head.pt`, and with tau its average as
    `target_value_head.pt`."""

    coefficient: float = 1.0  # in the batch's loss
    clip: float | None = None  # of the value's change; None: not clipped


@dataclass(frozen=True)
class TrainingJob:
    """All that determines a training, and where its output goes."""

    model: ModelSection
    section: FineTuningSection
    rows: Rows
    seed: int  # of a fresh adapter and of the order of rows
    # `adapter/`, `target/` (with tau), `optimizer.pt` and value heads are written there at the end, or nothing
    out: Path
    start: Start = Start()
    tau: float | None = (
        None  # share the target takes over per step; None: the target stays, and none is written
    )
    lr_scale: float = 1.0  # share of the section's learning rate in this iteration
    anchor: AnchorSection = field(default_factory=AnchorSection)
    policy_gradient: PolicyGradient = field(default_factory=PolicyGradient)
    value_loss: ValueLoss | None = None  # None: there is no value head
    trainer: TrainerSection = field(default_factory=TrainerSection)
    checkpoint: Path | None = None  # file to resume from if it exists, kept up to date until the end
    may_be_none: bool = False  # whether there may be no own row; then the parameters stay as they are
    scores: bool = True  # whether its own rows' scored segments are scored before the first step
