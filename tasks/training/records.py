"""What training gives back, and its errors: plain values that need no torch."""

from dataclasses import dataclass


class TrainingError(Exception):
    """Training can't start or go on; nothing was written. The message names the field to change."""


class TrainingDiverged(TrainingError):
    """A loss, gradient or parameter is not finite, or the loss stays far above that of a uniform guess."""


class NothingToTrain(TrainingError):
    """There is no valid row of the stage's own role; raised before any model is loaded."""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step; the fields are those of `schemas.rows.TrainingStep`."""

    step: int  # 0-based within the stage
    loss: float  # of all roles, + coefficient * anchor_kl, nats per token
    critic_loss: float | None  # None without such rows
    policy_loss: float | None
    chat_loss: float | None
    demonstration_loss: float | None
    anchor_kl: float | None  # KL(p_theta || p_anchor), None where it is not computed
    learning_rate: float
    grad_norm: float  # before clipping
    rows: int
    label_tokens: int
    tokens: int  # of all rows
    value_loss: float | None = (
        None  # mean over rows that have a value to predict, w times it; None without any
    )
    # Of the batch's sampled turns; None without any.
    clipped_share: float | None = None  # of their tokens, those whose ratio is clipped
    old_kl: float | None = None  # k3 estimate of KL(p_old || p_theta), nats per token
    engine_gap_mean: float | None = None  # of |log p_old - log p_engine|
    engine_gap_max: float | None = None
    engine_k3: float | None = None  # k3 estimate of KL(p_engine || p_old), nats per token


@dataclass(frozen=True)
class TrainingResult:
    """What one training stage did. Dictionaries are keyed by `Example.row_id`."""

    steps: list[StepRecord]
    # log p_theta of the scored segment's tokens, before the first update; of a sampled turn, all its tokens'
    scores: dict[str, tuple[float, ...]]
    uses: dict[str, int]  # optimizer steps whose batch held the row
    prompt_tokens: dict[str, int]
    label_tokens: dict[str, int]
    too_long: dict[str, str]  # rows left out, with the reason
    target_moved: float | None  # 1 - (1 - tau)^steps; None where the target is not updated
    micro_batch_rows: int  # at the end: fewer than configured where memory did not hold those
