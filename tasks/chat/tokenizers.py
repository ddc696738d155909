"""Chats as tokens: messages to prompt ids, answers to token ids and back.

Inference and training share this module, so both see the same tokens. Model families differ in their templates
(`tasks.chat.templates`) and in their marks of hidden chains of thought and calls of tools
(`tasks.chat.response_parser`); only this package knows of it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.chat.messages import Message, RequestError, Tool
from tasks.chat.response_parser import MARKS
from tasks.chat.templates import ChatTemplate, opening_of
from tasks.lean_imports import without

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPTS = 256  # encoded prompts kept
OPENING_TOKENS = 16  # more than an opening mark and the whitespace after it take


class ChatTokenizer:
    """Encodes and decodes chats with a tokenizer of transformers.

    Args:
        tokenizer: must have a chat template.

    Raises:
        RequestError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self.render, self.fit = self._template.render, self._template.fit
        self.reasoning_text = self._template.reasoning
        added = tokenizer.added_tokens_decoder
        self._special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        # Marks of reasoning and calls stay in the text, even where they are special tokens.
        self._marks = {str(added[i]): i for i in self._special & added.keys() if str(added[i]) in MARKS}
        self._mark = re.compile(f"({'|'.join(map(re.escape, self._marks))})") if self._marks else None
        # The tokenizers library raises "Already borrowed" when two threads use it at once.
        self._lock = threading.Lock()
        # The wrapper takes several times as long as the encoding of a short prompt itself.
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        # Requests for several samples of one prompt follow one another.
        self._prompt = lru_cache(maxsize=PROMPTS)(self._encode_prompt)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = False,
        reasoning: str | None = None,
    ) -> list[int]:
        """Token ids up to where the assistant's next turn begins, or behind its hidden chain of thought.

        Args:
            messages: the chat.
            tools: tools on offer.
            thinking: begin the turn with a hidden chain of thought, if the family supports one.
            reasoning: a given chain of thought, behind which the answer is scored.

        Raises:
            RequestError: the template refuses the messages.
        """
        prompt = self._prompt(json.dumps([list(messages), list(tools)]), thinking or bool(reasoning))
        return [*prompt, *self.reasoning_ids(reasoning)]

    def reasoning_ids(self, reasoning: str | None) -> list[int]:
        """Token ids of a hidden chain of thought as a model of this family samples it, up to where the answer begins;
        none where there is none."""
        return self._answer_ids(self.reasoning_text(reasoning)) if reasoning else []

    def _encode_prompt(self, chat: str, thinking: bool) -> list[int]:
        messages, tools = json.loads(chat)
        pieces = self._template.pieces(messages, tools, thinking)
        return [token for piece in pieces for token in self._encode(piece, plain=False)]

    def completion_text(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """Text of a sampled completion. If the prompt ends with the opening mark of a hidden chain of thought, the text
        begins with it."""
        opening = opening_of(self.decode(prompt[-OPENING_TOKENS:]))
        return opening + self.decode(completion)

    def answer_text(self, answer: Message, tools: Sequence[Tool] = ()) -> str:
        """An assistant's message as a model of this family writes it, including calls of tools.

        Raises:
            RequestError: the template refuses it.
        """
        return self._template.answer(answer, tools=tools)

    def segment_ids(self, segments: Sequence[str]) -> list[list[int]]:
        """Token ids of each segment of an answer, encoded separately, so that each segment's tokens are known. The name
        of a special token counts as ordinary text, except for marks of reasoning and calls."""
        return [self._answer_ids(segment) for segment in segments]

    def _answer_ids(self, text: str) -> list[int]:
        if self._mark is None or not text:
            return self._encode(text, plain=True)
        parts = ((part, self._marks.get(part)) for part in self._mark.split(text) if part)
        return [
            i for part, mark in parts for i in (self._encode(part, plain=True) if mark is None else [mark])
        ]

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        with self._lock:
            if self._backend is None:
                ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=plain)
            else:
                self._backend.encode_special_tokens = plain
                ids = self._backend.encode(text, add_special_tokens=False).ids
        return [int(token) for token in ids]

    @cached_property
    def end_ids(self) -> list[int]:
        """The token that ends an assistant's turn: the first special token that the template prints after it."""
        marker = "@@answer@@"
        chat = [Message(role="user", content="hello"), Message(role="assistant", content=marker)]
        _, _, tail = self.render(chat, add_generation_prompt=False).rpartition(marker)
        for token in self._encode(tail, plain=False):
            if token in self._special:
                return [token]
        return [int(self.tokenizer.eos_token_id)]

    @property
    def pad_id(self) -> int:
        """Token that pads a batch; always masked."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else self.end_ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens, except for marks of reasoning and calls."""
        kept = self._marks.values()
        shown = [i for i in ids if i not in self._special or i in kept]
        with self._lock:
            return str(self.tokenizer.decode(shown, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=8)
def shared_chat_tokenizer(path_or_name: Path | str, revision: str | None = None) -> ChatTokenizer:
    """As load_chat_tokenizer, but loaded once per process, for prompts, engines and trainers. Safe from any thread;
    must not be changed.

    Raises:
        RequestError: as load_chat_tokenizer.
    """
    return load_chat_tokenizer(path_or_name, revision)


def load_chat_tokenizer(path_or_name: Path | str, revision: str | None = None) -> ChatTokenizer:
    """The tokenizer of a checkpoint folder or hub name.

    Args:
        path_or_name: a folder or a hub name.
        revision: hub revision.

    Raises:
        RequestError: there is no tokenizer there, or it has no chat template.
    """
    try:
        if _is_plain(Path(path_or_name)):
            from transformers import TokenizersBackend

            return ChatTokenizer(TokenizersBackend.from_pretrained(str(path_or_name)))
        with without("sklearn"):
            from transformers import AutoTokenizer

        return ChatTokenizer(AutoTokenizer.from_pretrained(str(path_or_name), revision=revision))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RequestError(f"model.name: no tokenizer can be loaded from {path_or_name}: {reason}") from error


def _is_plain(folder: Path) -> bool:
    """Whether AutoTokenizer would choose the plain class for a folder.

    AutoTokenizer imports torch and all of generation, five times the cost of tokenizing, which a stage whose engine is
    a server does not need. For this one kind of model the choice depends only on these two fields.
    """
    try:
        model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    plain = tokenizer.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in tokenizer
    return bool(plain and model.get("model_type") == "llama")
