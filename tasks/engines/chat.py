"""Chat templates in one place: messages to prompt ids, completions to token ids, hidden reasoning off the
text.

Inference and training both go through here, so that what is trained on is tokenised as what is generated
from.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.engines.base import EngineError, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK, END_THINK = "<think>", "</think>"
PROMPTS = 256  # encoded prompts kept


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Part a completion into its hidden chain of thought and its answer.

    Args:
        text: what a model wrote. Templates that open `<think>` in the prompt leave only the closing tag in
            it.

    Returns:
        (reasoning, answer); reasoning is None where there is none. A reasoning that was never closed (cut
        off by the token cap) leaves an empty answer.
    """
    before, closed, after = text.partition(END_THINK)
    if closed:
        return before.replace(THINK, "", 1).strip(), after.strip()
    if text.lstrip().startswith(THINK):
        return text.lstrip()[len(THINK) :].strip(), ""
    return None, text


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """Put a leading system message at the head of the first user message, for templates without a system
    role."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    if not rest or rest[0]["role"] != "user":
        return [Message(role="user", content=system["content"]), *rest]
    merged = f"{system['content']}\n\n{rest[0]['content']}"
    return [Message(role="user", content=merged), *rest[1:]]


class ChatTokenizer:
    """A tokenizer seen as what chats need of it.

    Args:
        tokenizer: of transformers, with a chat template.

    Raises:
        EngineError: it has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise EngineError(
                f"model.name: {tokenizer.name_or_path} has no chat template; take the instruct version of the model"
            )
        self.tokenizer = tokenizer
        # The tokenizers library refuses to be used by two threads at once ("Already borrowed").
        self._lock = threading.Lock()
        # The wrapper around it costs several times what a short prompt's encoding does.
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        # Several samples are drawn under one prompt, one request after the other.
        self._prompt = lru_cache(maxsize=PROMPTS)(self._encode_prompt)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt as text, with a system message merged into the first user message if the template
        needs it.

        Raises:
            EngineError: the template refuses these messages (roles out of order, for instance).
        """
        from jinja2.exceptions import TemplateError

        try:
            return self._apply(messages, add_generation_prompt)
        except TemplateError as refused:
            merged = merge_system(messages)
            if merged == list(messages):
                raise EngineError(f"the chat template refuses these messages: {refused}") from refused
        try:
            return self._apply(merged, add_generation_prompt)
        except TemplateError as refused:
            raise EngineError(f"the chat template refuses these messages: {refused}") from refused

    def _apply(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return str(text)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids up to where the assistant's next turn begins."""
        return list(self._prompt(_frozen(messages), False))

    def answer_prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """prompt_ids for a completion that is given (scored or trained on): where the template opens a hidden
        reasoning, it is closed empty, because given completions are answers. The same ids for other
        templates."""
        return list(self._prompt(_frozen(messages), True))

    def _encode_prompt(self, messages: tuple[tuple[str, str], ...], answers: bool) -> list[int]:
        text = self.render([Message(role=role, content=content) for role, content in messages])
        if answers and text.rstrip().endswith(THINK):
            text = f"{text.rstrip()}\n\n{END_THINK}\n\n"
        return self._encode(text, plain=False)

    def segment_ids(self, segments: Sequence[str]) -> list[list[int]]:
        """Token ids of each segment by itself, so that the tokens of each are known after concatenation. A
        special token's name within the text is ordinary text here."""
        return [self._encode(segment, plain=True) for segment in segments]

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
        special = set(self.tokenizer.all_special_ids)
        for token in self._encode(tail, plain=False):
            if token in special:
                return [token]
        return [int(self.tokenizer.eos_token_id)]

    @property
    def pad_id(self) -> int:
        """Fills a batch; masked wherever it stands."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else self.end_ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        with self._lock:
            return str(self.tokenizer.decode(list(ids), **options))


def _frozen(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in messages)


def load_chat_tokenizer(path_or_name: Path | str, revision: str | None = None) -> ChatTokenizer:
    """The tokenizer of a checkpoint folder or hub name.

    Args:
        path_or_name: as `tasks.engines.models.resolve_model` gives it.
        revision: hub revision.

    Raises:
        EngineError: there is no tokenizer there, or it has no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path_or_name), revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(f"model.name: no tokenizer can be loaded from {path_or_name}: {reason}") from error
    return ChatTokenizer(tokenizer)
