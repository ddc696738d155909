"""What was trained on, and how each step went."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Row


class TrainingRow(Row):
    """One row trained on: what went into an adapter version."""

    TABLE: ClassVar[str] = "training_rows"
    VERSION: ClassVar[int] = 3
    stage: str = Field(description="critic-sft, policy-distillation or warm-start")
    role: Literal["critic", "policy", "chat", "demonstration"] = Field(
        description="which role's prompt and loss; chat: general conversation; demonstration: its own role's"
    )
    source_table: str = Field(
        description="corrected_targets, refinements, transitions or demonstrations; chat_file: no table, "
        "anchor.chat_file"
    )
    source_id: str = Field(description="id in that table; chat/number of the line in the file")
    adapter_version: str = Field(description="adapter version this row helped to train")
    weight: float = Field(description="importance weight on its loss")
    prompt_tokens: int = Field(description="tokens without loss")
    label_tokens: int = Field(description="tokens with loss")
    uses: int = Field(description="optimizer steps whose batch held the row")
    dropped_turns: int | None = Field(
        None,
        description="oldest exchanges left out of its prompt, as in Generation; NULL, in older files: none",
    )
    dropped_chars: int | None = Field(None, description="characters left out of its prompt, theirs included")


class TrainingStep(Row):
    """One optimizer step."""

    TABLE: ClassVar[str] = "training_steps"
    VERSION: ClassVar[int] = 2
    stage: str = Field(description="critic-sft or policy-distillation")
    adapter_version: str = Field(description="adapter version being trained")
    step: int = Field(description="0-based optimizer step of this stage")
    loss: float = Field(
        description="critic_loss + policy_loss + chat_loss + anchor.kl * anchor_kl (nats per token); a warm start's "
        "over all of its rows"
    )
    critic_loss: float | None = Field(
        None, description="mean over critic rows of w * NLL; NULL without such rows"
    )
    policy_loss: float | None = Field(
        None, description="mean over policy rows of NLL; NULL without such rows"
    )
    chat_loss: float | None = Field(None, description="mean over chat rows of NLL; NULL without such rows")
    anchor_kl: float | None = Field(
        None,
        description="mean KL(p_theta || p_base) at the own rows' label tokens; NULL where anchor.kl is 0",
    )
    learning_rate: float = Field(description="rate of this step")
    grad_norm: float = Field(description="global gradient norm before clipping")
    rows: int = Field(description="rows in the batch")
    label_tokens: int = Field(description="tokens with loss in the batch")
    tokens: int = Field(description="tokens of the batch's rows")
