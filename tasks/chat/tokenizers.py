"""Chats as tokens: messages to prompt ids, answers to token ids and back.

Inference and training both go through here, so that what is trained on is tokenised as what is generated
from. Families differ in their templates (`tasks.chat.templates`) and in how they mark a hidden chain of thought
and calls of tools (`tasks.chat.response_parser`); nothing outside these modules knows of it.
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
OPENING_TOKENS = 16  # more than an opening mark and the white space behind it ever have


class ChatTokenizer:
    """A tokenizer seen as what chats need of it.

    Args:
        tokenizer: of transformers, with a chat template.

    Raises:
        RequestError: it has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self.render, self.fit = self._template.render, self._template.fit
        added = tokenizer.added_tokens_decoder
        self._special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        # Marks of reasoning and calls are text to us, whether or not the family makes them special tokens.
        self._marks = {str(added[i]): i for i in self._special & added.keys() if str(added[i]) in MARKS}
        self._mark = re.compile(f"({'|'.join(map(re.escape, self._marks))})") if self._marks else None
        # The tokenizers library refuses to be used by two threads at once ("Already borrowed").
        self._lock = threading.Lock()
        # The wrapper around it costs several times what a short prompt's encoding does.
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        # Several samples are drawn under one prompt, one request after the other.
        self._prompt = lru_cache(maxsize=PROMPTS)(self._encode_prompt)

    def prompt_ids(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), thinking: bool = False
    ) -> list[int]:
        """Token ids up to where the assistant's next turn begins.

        Args:
            messages: the chat.
            tools: on offer.
            thinking: the turn begins with a hidden chain of thought, if the family knows one. Without it they are what
                an answer is written, scored and trained on under.

        Raises:
            RequestError: the template refuses the messages.
        """
        return list(self._prompt(json.dumps([list(messages), list(tools)]), thinking))

    def _encode_prompt(self, chat: str, thinking: bool) -> list[int]:
        messages, tools = json.loads(chat)
        return self._encode(self.render(messages, tools=tools, thinking=thinking), plain=False)

    def completion_text(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """The text of a sampled completion, a hidden chain of thought marked from its beginning on also where the
        prompt holds the opening mark."""
        opening = opening_of(self.decode(prompt[-OPENING_TOKENS:]))
        return opening + self.decode(completion)

    def answer_text(self, answer: Message, tools: Sequence[Tool] = ()) -> str:
        """An assistant's message as the family's model writes it, calls of tools included.

        Raises:
            RequestError: the template refuses it.
        """
        return self._template.answer(answer, tools=tools)

    def segment_ids(self, segments: Sequence[str]) -> list[list[int]]:
        """Token ids of each segment of an answer by itself, so that the tokens of each are known after concatenation.
        A special token's name within the text is ordinary text here, but for marks of reasoning and calls."""
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
        """The token that ends an assistant turn: the first special token that the template puts after one."""
        marker = "@@answer@@"
        chat = [Message(role="user", content="hello"), Message(role="assistant", content=marker)]
        _, _, tail = self.render(chat, add_generation_prompt=False).rpartition(marker)
        for token in self._encode(tail, plain=False):
            if token in self._special:
                return [token]
        return [int(self.tokenizer.eos_token_id)]

    @property
    def pad_id(self) -> int:
        """Fills a batch; masked wherever it stands."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else self.end_ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens, but for marks of reasoning and calls."""
        kept = self._marks.values()
        shown = [i for i in ids if i not in self._special or i in kept]
        with self._lock:
            return str(self.tokenizer.decode(shown, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=8)
def shared_chat_tokenizer(path_or_name: Path | str, revision: str | None = None) -> ChatTokenizer:
    """The same, loaded once a process: a stage's prompts, its engine and its trainer, and all stages of an iteration in
    one process, read with one. Safe from any thread; not to be changed.

    Raises:
        RequestError: as load_chat_tokenizer.
    """
    return load_chat_tokenizer(path_or_name, revision)


def load_chat_tokenizer(path_or_name: Path | str, revision: str | None = None) -> ChatTokenizer:
    """The tokenizer of a checkpoint folder or hub name.

    Args:
        path_or_name: as `tasks.engines.models.resolve_model` gives it.
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
    """Whether AutoTokenizer would take the plain class for a folder.

    Asking AutoTokenizer itself imports torch and all of generation, five times what tokenizing takes: seconds that a
    stage whose engine is a server would spend on nothing else. For this one kind of model the choice is known to
    depend on nothing but these two fields.
    """
    try:
        model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    plain = tokenizer.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in tokenizer
    return bool(plain and model.get("model_type") == "llama")
