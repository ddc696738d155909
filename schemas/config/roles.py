"""Who plays which role, and in which environment."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from schemas.config.base import NonNegative, Section

UNTRAINED = ("bootstrap", "evaluate", "refine")
"""Demonstrated roles that no stage after the warm start trains."""


class RoleSection(Section):
    """How one role is played. `roles.all` gives fields to all six roles; a role's own fields override it. A field that
    neither gives keeps the role's default."""

    engine: str = Field("local", description="name of an engine under `engines`")
    temperature: NonNegative = Field(1.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling mass")
    max_tokens: PositiveInt = Field(96, description="cap on completion tokens")
    structured: bool = Field(
        False, description="generate under the role's declared format. policy and refine: one line of thought, then "
        "the environment's action format; evaluate: the verdict, then its reason; predict and bootstrap: two labelled "
        "lines. Text after a label is free; correct has no format"
    )  # fmt: skip
    line_chars: PositiveInt = Field(
        80, description="structured: most characters of free text after a label. Two such lines should fit into "
        "max_tokens. A text that fills max_tokens or a line is cut, and is not trained on"
    )  # fmt: skip
    template: str | None = Field(None, description="path of a prompt template that replaces the shipped one")
    thinking: bool = Field(
        False, description="let a model whose chat template supports it write a hidden chain of thought before the "
        "answer. Column `reasoning` keeps it, and no later prompt shows it. policy and predict are trained on it "
        "too, after correction (docs/models.md). max_tokens covers both. false: the answer comes at once "
        "(enable_thinking off, or the block closed empty). Among servers, only those with options.server vllm receive "
        "the setting"
    )  # fmt: skip

    frozen: bool | None = Field(
        None, description="for bootstrap, correct, evaluate and refine, which no stage trains: play the role with the "
        "warm-started model (without a warm start: the base model), whatever has been trained since. Only where the "
        "engine plays the model in training. Empty: with a warm start, yes for the three that it teaches, all but "
        "correct"
    )  # fmt: skip
    tool_calls: Literal["text", "native"] = Field(
        "text", description="role policy, in an environment that offers tools. text: actions are written as the prompt "
        "says; native: the chat template offers the tools, and calls are written, read and trained on in the model "
        "family's own form (needs structured: false)"
    )  # fmt: skip

    @property
    def line_limit(self) -> int | None:
        """Most characters of a line of free text; None where lines are free."""
        return self.line_chars if self.structured else None

    @model_validator(mode="after")
    def _thinks_freely(self) -> "RoleSection":
        if self.thinking and self.structured:
            raise ValueError(
                "thinking: a completion under a format has no room for a chain of thought; set structured to false"
            )
        if self.tool_calls == "native" and self.structured:
            raise ValueError("tool_calls: native calls have their family's format; set structured to false")
        return self


class RolesSection(Section):
    """The six roles, told apart by the prompt alone."""

    policy: RoleSection = RoleSection(max_tokens=64, structured=True, line_chars=120)
    predict: RoleSection = RoleSection(max_tokens=96, structured=True, line_chars=120)
    bootstrap: RoleSection = RoleSection(max_tokens=96, structured=True, line_chars=120)
    correct: RoleSection = RoleSection(temperature=0.5, max_tokens=64)
    evaluate: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True, line_chars=100)
    refine: RoleSection = RoleSection(temperature=0.7, max_tokens=64, structured=True, line_chars=120)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Each role's defaults, under the fields of `all`, under its own."""
        if not isinstance(given, Mapping):
            return given
        common = given.get("all", {})
        if not isinstance(common, Mapping):
            raise ValueError("all: must hold fields of a role, for instance {engine: local}")
        roles = {name: section for name, section in given.items() if name != "all"}
        for role, field in cls.model_fields.items():
            own = roles.get(role, {})
            if isinstance(own, Mapping):
                roles[role] = {**field.default.model_dump(exclude_unset=True), **common, **own}
        return roles

    @model_validator(mode="after")
    def _policy_alone_calls(self) -> "RolesSection":
        for role, section in self:
            if role != "policy" and section.tool_calls == "native":
                raise ValueError(f"{role}.tool_calls: only the policy calls tools; set it to text")
            if role in ("policy", "predict") and section.frozen:
                raise ValueError(f"{role}.frozen: this role is what is trained; set it to false")
        return self


class EnvironmentSection(Section):
    """The environment, its reward, and the environment model."""

    name: str = Field("textarena", description="a built-in name, or an import path 'module:factory'")
    options: dict[str, Any] = Field({}, description="arguments of the environment")
    reward: Literal["success", "game"] = Field(
        "success", description="what r is. success: 1 for the environment's own success, otherwise 0; game: its own "
        "(shaped) reward"
    )  # fmt: skip
    model: RoleSection | None = Field(
        None, description="the environment model, where another model takes part in the environment (an oracle, an "
        "opponent, a simulated user): fields as for a role, without template. An engine without its own `model` plays "
        "the untrained base model. structured: enforce the formats that the environment asks for"
    )  # fmt: skip

    @model_validator(mode="after")
    def _no_template(self) -> "EnvironmentSection":
        if self.model is not None and self.model.template is not None:
            raise ValueError("model.template: the environment writes its model's prompts itself; remove it")
        if self.model is not None and self.model.tool_calls == "native":
            raise ValueError("model.tool_calls: only the policy calls tools; set it to text")
        if self.model is not None and self.model.frozen:
            raise ValueError("model.frozen: the environment's model is never trained; remove it")
        return self
