"""Schema of a logged record: messages in the form of OpenAI's chat API, and a reward. Other keys are kept."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.rows import Split
from tasks.logs.records import BrokenRecord


class Rejected(Exception):
    """A record can't be used; `kind` becomes the row's status, the message its error."""

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
    function_call: None = Field(None, description="predecessor of tool_calls; not supported")

    @property
    def text(self) -> str:
        """Its content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _Parameters(_Open):
    properties: dict[str, Any] = {}
    required: list[str] = []


class _ToolFunction(_Open):
    name: str
    description: str = ""
    parameters: _Parameters = _Parameters()


class Tool(_Open):
    """A tool's schema."""

    function: _ToolFunction

    @property
    def line(self) -> str:
        """The tool on one line: name, names and types of its parameters (? marks an optional one), and description."""
        offered = self.function.parameters
        types = {
            name: kind.get("type", "any") if isinstance(kind, dict) else "any"
            for name, kind in offered.properties.items()
        }
        parameters = ", ".join(
            f"{name}{'' if name in offered.required else '?'}: {kind}" for name, kind in types.items()
        )
        return f"- {self.function.name}({parameters}): {' '.join(self.function.description.split())}"


class LoggedRecord(_Open):
    """A record: one conversation, which is one episode."""

    messages: list[LoggedMessage]
    reward: float = Field(allow_inf_nan=False)
    success: bool | None = None
    task_id: str | int | None = None
    split: Split = "train"
    tools: list[Tool] | None = None
    model: str | None = None


def check_record(record: Any) -> LoggedRecord:
    """Validate a record. `traj` is an alias of `messages`.

    Raises:
        Rejected: the record is not valid; the reason names the field.
    """
    if isinstance(record, BrokenRecord):
        raise Rejected(record.kind, record.reason)
    if not isinstance(record, dict):
        raise Rejected("not_a_record", f"a record is a JSON object, this is {type(record).__name__}")
    if "messages" not in record and "traj" in record:
        record = {**record, "messages": record["traj"]}
    try:
        checked = LoggedRecord.model_validate(record)
    except ValidationError as error:
        # Of a union's errors, the deepest one belongs to the alternative that matched best.
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
    """The list of tools in the agent's prompt; empty without tools."""
    return "\n".join(["Tools:", *(tool.line for tool in tools)]) if tools else ""
