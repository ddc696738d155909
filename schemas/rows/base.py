"""What every table has, and where a generated text came from."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Split = Literal["train", "eval"]
PriorityKind = Literal["kl_bound", "nll"]


class Generation(BaseModel):
    """Where one generated text came from: enough to ask for it again."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    engine: str = Field(description="engine name in the configuration")
    model_version: str = Field(description="model or adapter version that wrote it")
    prompt_digest: str = Field(
        description="sha256 (12 hex) of the prompt template; of an environment model, which has none, of its first message"
    )
    temperature: float = Field(description="sampling temperature; 0 is greedy")
    top_p: float = Field(description="nucleus sampling mass")
    max_tokens: int = Field(description="cap on completion tokens")
    seed: int = Field(description="seed of this request's own random stream")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length or error")
    dropped_turns: int | None = Field(
        None, description="oldest exchanges of the history left out of the prompt to fit it into the context window "
        "(docs/logged.md); NULL, in older files: none"
    )  # fmt: skip
    dropped_chars: int | None = Field(None, description="characters left out of the prompt, theirs included")


class Row(BaseModel):
    """What every table has."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    TABLE: ClassVar[str]
    VERSION: ClassVar[int] = 1

    run: str = Field(description="run the row belongs to")
    iteration: int = Field(description="iteration that wrote it")
    status: str = Field("ok", description="'ok', or what kind of failure this row records")
    error: str | None = Field(None, description="what went wrong, when status is not 'ok'")
