"""General conversations out of files of JSON lines: what training mixes in, and what the retention check scores.

A line is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}: an optional
system message, then user and assistant in turn. The last message is an answer of the assistant, the only one that is
trained on or scored. Other keys are ignored, empty lines too.
"""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from schemas.config import AnchorSection
from schemas.load import find_file
from tasks.chat.messages import Message
from tasks.datasets.example import Example
from tasks.runtime.stage import StageFailed

_DATA = Path(__file__).parent / "data"
GENERAL_CHAT = _DATA / "general_chat.jsonl"
RETENTION = _DATA / "retention.jsonl"


class BrokenConversations(StageFailed):
    """A file of conversations can't be used; the message names the file, the line and the field."""


@dataclass(frozen=True)
class Conversation:
    """A conversation and how it ends.

    Attributes:
        line: its number in the file, from 1.
        messages: all before the answer.
        answer: what the assistant last says.
    """

    line: int
    messages: tuple[Message, ...]
    answer: str


class _Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class _Line(BaseModel):
    messages: list[_Message] = Field(min_length=2)


def chat_file(section: AnchorSection) -> Path:
    """The file that `anchor.chat_file` names; empty: the shipped one."""
    return GENERAL_CHAT if section.chat_file is None else find_file(section.chat_file)


def load_conversations(path: Path) -> list[Conversation]:
    """All conversations of a file.

    Raises:
        BrokenConversations: it can't be read or holds none, or a line is not a conversation.
    """
    try:
        lines = _content(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise BrokenConversations(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    found = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise BrokenConversations(f'{path}: holds no conversation; a line is {{"messages": [...]}}')
    return found


def general_chat(section: AnchorSection, batch_rows: int, most_steps: int, seed: int) -> list[Example]:
    """Rows of general chat to mix into training: as many of the file as `most_steps` batches have room for.

    Args:
        section: the file, and its share of a batch.
        batch_rows: rows in a batch.
        most_steps: upper bound on the optimizer steps of the stage.
        seed: determines which conversations are drawn.

    Raises:
        BrokenConversations: the file of `anchor.chat_file` can't be used.
    """
    if not section.chat_share:
        return []
    known = load_conversations(chat_file(section))
    count = min(len(known), round(batch_rows * section.chat_share) * most_steps)
    drawn = sorted(random.Random(seed).sample(range(len(known)), count))
    return [Example(f"chat/{known[n].line}", "chat", known[n].messages, (known[n].answer,)) for n in drawn]


def content_digest(path: Path) -> str:
    """sha256 (hex) of a file's content, for fingerprints.

    Raises:
        BrokenConversations: it can't be read.
    """
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BrokenConversations(f"{path}: can't be read ({error.strerror})") from error


def _parse(path: Path, number: int, line: str) -> Conversation:
    where = f"{path}, line {number}"
    try:
        messages = _Line.model_validate_json(line).messages
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "not a JSON object"
        raise BrokenConversations(f"{where}: {field}: {first['msg']}") from error
    roles = [message.role for message in messages]
    turns = roles[1:] if roles[0] == "system" else roles
    if not turns or turns != [("user", "assistant")[n % 2] for n in range(len(turns))] or len(turns) % 2:
        raise BrokenConversations(
            f"{where}: messages: the roles are {', '.join(roles)}; they must be user and assistant in turn, with the "
            "assistant last (a system message may stand first)"
        )
    *before, last = (Message(role=m.role, content=m.content) for m in messages)
    return Conversation(number, tuple(before), last["content"])
