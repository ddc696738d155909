"""What a logged record has to be: messages in the form of OpenAI's chat API, and a reward. Other keys are kept."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.rows import Split
from tasks.logs.records import BrokenRecord


class Rejected(Exception):
    """A record that can't be used: the kind of fault, which is the row's status, and the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Function(_Open):
    """The function of a tool call; its arguments are JSON text."""

    name: str
    arguments: str


class ToolCall(_Open):
    """A tool call of an agent's message."""

    id: str | None = None
    function: Function


class _Part(_Open):
    type: Literal["text"]
    text: str


class LoggedMessage(_Open):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: None = Field(None, description="what came before tool_calls; not read")

    @property
    def text(self) -> str:
        """Its content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _ToolFunction(_Open):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Tool(_Open):
    """A tool's schema."""

    function: _ToolFunction

    @property
    def line(self) -> str:
        """The tool on one line: its name, the names and types of its parameters (? where it may be left out), and what
        it is for."""
        required = self.function.parameters.get("required", [])
        parameters = ", ".join(
            f"{name}{'' if name in required else '?'}: {kind.get('type', 'any') if isinstance(kind, dict) else 'any'}"
            for name, kind in self.function.parameters.get("properties", {}).items()
        )
        return f"- {self.function.name}({parameters}): {' '.join(self.function.description.split())}"


class LoggedRecord(_Open):
    """A record: one conversation, an episode."""

    messages: list[LoggedMessage]
    reward: float = Field(allow_inf_nan=False)
    success: bool | None = None
    task_id: str | int | None = None
    split: Split = "train"
    tools: list[Tool] | None = None
    model: str | None = None


def check_record(record: Any) -> LoggedRecord:
    """A record, checked. `traj` stands for `messages`.

    Raises:
        Rejected: it is not one; the reason names the field.
    """
    if isinstance(record, BrokenRecord):
        raise Rejected("not_json", "the line is not JSON")
    if not isinstance(record, dict):
        raise Rejected("not_a_record", f"a record is a JSON object, this is {type(record).__name__}")
    if "messages" not in record and "traj" in record:
        record = {**record, "messages": record["traj"]}
    try:
        checked = LoggedRecord.model_validate(record)
    except ValidationError as error:
        # Of the alternatives that a field has, the one that was followed furthest says most.
        worst = max(error.errors(include_input=False, include_url=False), key=lambda e: len(e["loc"]))
        field = ".".join(str(part) for part in worst["loc"])
        kind = {"messages": "bad_messages", "reward": "bad_reward"}.get(str(worst["loc"][0]), "bad_field")
        raise Rejected(kind, f"{field}: {worst['msg']}") from error
    if not any(message.role == "assistant" for message in checked.messages):
        raise Rejected(
            "no_agent_step", "messages: none is the agent's (role assistant), so there is no transition"
        )
    return checked


def tool_lines(tools: Sequence[Tool]) -> str:
    """Tools as the agent's prompt lists them; empty without any."""
    return "\n".join(["Tools:", *(tool.line for tool in tools)]) if tools else ""
