"""Who plays which role, and in what environment."""

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from schemas.config.base import NonNegative, Section


class RoleSection(Section):
    """How one role is played."""

    engine: str = Field("local", description="name of an engine under `engines`")
    temperature: NonNegative = Field(1.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus mass")
    max_tokens: PositiveInt = Field(96, description="cap on completion tokens")
    structured: bool = Field(
        False,
        description="generate under the role's declared format. policy and refine: one line of thought, then the "
        "environment's action format; evaluate: the verdict, then its reason; predict and bootstrap: the labels of "
        "their two lines. What stands after a label is free text; correct is free text altogether",
    )
    line_chars: PositiveInt = Field(
        80, description="structured: longest free text after a label, characters. Two such lines should fit into "
        "max_tokens, or a text ends before its second label"
    )  # fmt: skip
    template: str | None = Field(None, description="path of a prompt template that replaces the shipped one")
    thinking: bool = Field(
        False, description="let a model whose chat template knows of it write a hidden chain of thought before the "
        "answer: kept in column `reasoning`, in no prompt, never trained on; max_tokens holds both. Else the answer "
        "comes at once (enable_thinking off, or the block closed empty); of servers, those with options.server vllm "
        "are told"
    )  # fmt: skip

    tool_calls: Literal["text", "native"] = Field(
        "text", description="of role policy, in an environment that offers tools. text: an action is written as the "
        "prompt says; native: as the model's chat template writes calls, which are offered, written, read and trained "
        "on in the family's own form (needs structured: false)"
    )  # fmt: skip

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

    policy: RoleSection = RoleSection(max_tokens=40, structured=True, line_chars=60)
    predict: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True)
    bootstrap: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True)
    correct: RoleSection = RoleSection(temperature=0.5, max_tokens=32)
    evaluate: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True, line_chars=100)
    refine: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True, line_chars=60)

    @model_validator(mode="after")
    def _policy_alone_calls(self) -> "RolesSection":
        for role, section in self:
            if role != "policy" and section.tool_calls == "native":
                raise ValueError(f"{role}.tool_calls: only the policy calls tools; set it to text")
        return self


class EnvironmentSection(Section):
    """What is played."""

    name: str = Field("textarena", description="a built-in name, or an import path 'module:factory'")
    options: dict[str, Any] = Field({}, description="arguments of the environment")
    reward: Literal["success", "game"] = Field(
        "success", description="what r is: 1 for the environment's own success, or its own (shaped) reward"
    )
    model: RoleSection | None = Field(
        None, description="how the model that speaks in the environment is played (an oracle, an opponent, a simulated "
        "user), for environments that have one: fields as a role's, but no template. An engine without a `model` of "
        "its own plays the base model, untrained. structured: hold the formats that the environment asks for"
    )  # fmt: skip

    @model_validator(mode="after")
    def _no_template(self) -> "EnvironmentSection":
        if self.model is not None and self.model.template is not None:
            raise ValueError("model.template: an environment writes its model's prompts itself; remove it")
        if self.model is not None and self.model.tool_calls == "native":
            raise ValueError("model.tool_calls: only the policy calls tools; set it to text")
        return self
