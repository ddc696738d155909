"""The columns of every table, and the provenance of a generated text."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Split = Literal["train", "validation", "eval"]
PriorityKind = Literal["kl_bound", "nll"]


class Generation(BaseModel):
    """Provenance of one generated text: enough to request it again."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    engine: str = Field(description="engine name in the configuration")
    model_version: str = Field(description="model or adapter version that wrote it")
    prompt_digest: str = Field(
        description="sha256 (12 hex) of the prompt template; for an environment model, of its first message"
    )
    temperature: float = Field(description="sampling temperature; 0 is greedy")
    top_p: float = Field(description="nucleus sampling mass")
    max_tokens: int = Field(description="cap on completion tokens")
    seed: int = Field(description="seed of this request's own random stream")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length or error")
    dropped_turns: int | None = Field(
        None, description="oldest exchanges left out of the prompt to fit the context window (docs/logged.md); NULL in "
        "older files: none"
    )  # fmt: skip
    dropped_chars: int | None = Field(
        None, description="characters left out of the prompt, those exchanges included"
    )


class Row(BaseModel):
    """The columns of every table."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    TABLE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    OLDER: ClassVar[Mapping[str, str]] = {}
    """Column -> its value in files of versions that lack it; other such columns are NULL there."""

    run: str = Field(description="run the row belongs to")
    iteration: int = Field(description="iteration that wrote it")
    status: str = Field("ok", description="'ok', or the kind of failure that this row records")
    error: str | None = Field(None, description="what went wrong, when status is not 'ok'")
