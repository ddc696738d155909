"""Chats of 150 to 350 tokens to train on: shipped conversations, several in a row as one chat.

The last third of the questions is asked at once, and their answers are the completion, which alone has a loss.
"""

import random
from itertools import cycle
from typing import TYPE_CHECKING

from schemas.config import AnchorSection
from tasks.chat.messages import Message
from tasks.datasets.chats import Conversation, chat_file, load_conversations
from tasks.datasets.example import Example
from tasks.training.data import encode

if TYPE_CHECKING:
    from tasks.chat.tokenizers import ChatTokenizer

SHORTEST, LONGEST = 150, 350  # tokens, chat template included


def make_chats(number: int, tokenizer: "ChatTokenizer", seed: int = 0) -> list[Example]:
    """As many chats, the same for the same seed; their ids are `chat/0` and so on.

    Args:
        number: of chats.
        tokenizer: the model's, which counts tokens.
        seed: of order and lengths.
    """
    stream = random.Random(seed)
    known = load_conversations(chat_file(AnchorSection()))
    supply = cycle(stream.sample(known, len(known)))
    made: list[Example] = []
    while len(made) < number:
        wanted, parts, row = stream.uniform(SHORTEST, LONGEST - 50), [next(supply)], None
        while row is None or encode(row, tokenizer, 1 << 16).tokens < wanted:
            parts.append(next(supply))
            row = _chat(f"chat/{len(made)}", parts)
        if SHORTEST <= encode(row, tokenizer, 1 << 16).tokens <= LONGEST:
            made.append(row)
    return made


def _chat(name: str, parts: list[Conversation]) -> Example:
    last = -(-len(parts) // 3)
    turns: list[Message] = []
    for part in parts[:-last]:
        turns += [*part.messages, Message(role="assistant", content=part.answer)]
    questions = "\n".join(str(part.messages[-1]["content"]) for part in parts[-last:])
    answers = "\n\n".join(part.answer for part in parts[-last:])
    return Example(name, "critic", (*turns, Message(role="user", content=questions)), (answers,))
