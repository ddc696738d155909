"""Rows trained on, and optimizer steps."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Row


class TrainingRow(Row):
    """One row that an adapter version was trained on."""

    TABLE: ClassVar[str] = "training_rows"
    VERSION: ClassVar[int] = 3
    stage: str = Field(description="critic-sft, policy-distillation or warm-start")
    role: Literal["critic", "policy", "chat", "demonstration"] = Field(
        description="whose prompt and loss the row has; chat: general conversation; demonstration: the demonstrated "
        "role's"
    )  # fmt: skip
    source_table: str = Field(
        description="corrected_targets, refinements, transitions, td_targets, sampled_actions or demonstrations; "
        "chat_file: anchor.chat_file, which is no table"
    )  # fmt: skip
    source_id: str = Field(description="id in that table; for chat_file, chat/number of the line")
    adapter_version: str = Field(description="adapter version this row helped to train")
    weight: float = Field(
        description="weight of its loss: the importance weight of a critic row, the soft weight of a sampled action"
    )
    prompt_tokens: int = Field(description="tokens without loss")
    label_tokens: int = Field(description="tokens with loss")
    uses: int = Field(description="optimizer steps whose batch held the row")
    dropped_turns: int | None = Field(
        None, description="oldest exchanges left out of its prompt, as in Generation; NULL in older files: none"
    )  # fmt: skip
    dropped_chars: int | None = Field(
        None, description="characters left out of its prompt, those exchanges included"
    )


class TrainingStep(Row):
    """One optimizer step."""

    TABLE: ClassVar[str] = "training_steps"
    VERSION: ClassVar[int] = 4
    stage: str = Field(description="critic-sft, policy-distillation or warm-start")
    adapter_version: str = Field(description="adapter version being trained")
    step: int = Field(description="0-based optimizer step of this stage")
    loss: float = Field(
        description="critic_loss + policy_loss + chat_loss + demonstration_loss + anchor.kl * anchor_kl (nats per "
        "token), and the value head's loss times its coefficient"
    )  # fmt: skip
    critic_loss: float | None = Field(
        None,
        description="mean over critic rows of w * NLL; NULL without such rows (algorithm sac: value_loss)",
    )
    policy_loss: float | None = Field(
        None,
        description="mean over policy rows of w * NLL, or the clipped-ratio loss of sampled turns "
        "(policy_gradient); NULL without policy rows",
    )
    chat_loss: float | None = Field(None, description="mean over chat rows of NLL; NULL without chat rows")
    anchor_kl: float | None = Field(
        None, description="mean KL(p_theta || p_anchor) at the own rows' label tokens (anchor.to); NULL if anchor.kl "
        "is 0"
    )  # fmt: skip
    demonstration_loss: float | None = Field(
        None,
        description="mean over demonstrations of NLL, in a warm start or rehearsed; NULL without such rows",
    )
    learning_rate: float = Field(description="rate of this step")
    grad_norm: float = Field(description="global gradient norm before clipping")
    rows: int = Field(description="rows in the batch")
    label_tokens: int = Field(description="tokens with loss in the batch")
    tokens: int = Field(description="tokens of the batch's rows")
    value_loss: float | None = Field(
        None, description="mean over the rows with a value to predict of w times the value head's (clipped) squared "
        "error / 2. In the loss times policy_gradient.value_coefficient (algorithm ppo) or soft_q.value_coefficient "
        "(sac); NULL: no such row"
    )  # fmt: skip
    clipped_share: float | None = Field(
        None, description="share of the sampled tokens whose ratio p_theta / p_old is clipped; NULL here and below: "
        "the batch has no sampled turn"
    )  # fmt: skip
    old_kl: float | None = Field(
        None, description="k3 estimate of KL(p_old || p_theta) over the sampled tokens (nats per token); p_old is the "
        "trainer's own before the stage's first step"
    )  # fmt: skip
    engine_gap_mean: float | None = Field(
        None, description="mean |log p_old - log p_engine| over the sampled tokens (nats): trainer and engine differ "
        "by kernels and types alone"
    )  # fmt: skip
    engine_gap_max: float | None = Field(None, description="the largest")
    engine_k3: float | None = Field(
        None, description="k3 estimate of KL(p_engine || p_old) over them (nats per token)"
    )
