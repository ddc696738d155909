"""Chat templates: messages to prompt text.

Probe messages show what a template supports (a system role, tools, a hidden chain of thought); `tasks.chat.messages`
puts the rest into words.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tasks.chat.messages import (
    Message,
    RequestError,
    Tool,
    for_templates,
    has_tools,
    merge_system,
    spell_tools,
)
from tasks.chat.response_parser import CLOSING, MARKS, BrokenCall, Call, read_calls, split_reasoning
from tasks.chat.special_tokens import CUT, TokenNames, map_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Templates that print today's date are given this one, Llama 3's default, because a prompt must not depend on the day.
TODAY = datetime.date(2024, 7, 26)

# Probe messages. Mistral's templates accept only ids of nine letters or digits.
_QUESTION = Message(role="user", content="Look.")
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "@@tool@@",
        "description": "It looks.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer", "description": "a number"}}},
    },
}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "000000001", "type": "function", "function": {"name": "@@call@@", "arguments": {"x": 1}}}
    ],
}
_RESULT: Message = {"role": "tool", "content": "@@result@@", "tool_call_id": "000000001", "name": "@@call@@"}

_EMPTY_REASONING = re.compile(
    "|".join(rf"{re.escape(a)}\s*(?:{re.escape(b)}\s*)?\Z" for a, b in CLOSING.items())
)


def template_arguments(thinking: bool) -> dict[str, Any]:
    """Further arguments of templates; each template reads the names it knows."""
    return {
        "enable_thinking": thinking,  # Qwen, GLM, SmolLM3 ...
        "thinking": thinking,  # DeepSeek, Granite
        "date_string": f"{TODAY:%d %b %Y}",  # Llama 3
    }


def opening_of(text: str) -> str:
    """The opening mark of a hidden chain of thought at the end of a text, or ''."""
    return next((mark for mark in CLOSING if text.rstrip().endswith(mark)), "")


class ChatTemplate:
    """Renders chats with a tokenizer's chat template.

    Args:
        tokenizer: holds the template.

    Raises:
        RequestError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise RequestError(
                f"model.name: {tokenizer.name_or_path} has no chat template; take the instruct version of the model"
            )
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        special = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
        printed = {str(token) for token in added if str(token) in str(tokenizer.chat_template)}
        self._names = TokenNames(special | {name for name in printed if not name.isspace()})
        # An assistant's marks of reasoning and calls are its own, and tokens when it samples them.
        self._assistant_names = TokenNames(special.difference(MARKS))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text.

        Args:
            messages: the chat. Hidden chains of thought in it are left out.
            tools: tools on offer.
            thinking: begin the next turn with a hidden chain of thought, if the template supports one. Otherwise a
                chain of thought that the template opens is closed empty, so that the turn begins with the answer.
            add_generation_prompt: end where the assistant's next turn begins.

        Raises:
            RequestError: the template refuses these messages (roles out of order, for instance).
        """
        return "".join(self.pieces(messages, tools, thinking, add_generation_prompt))

    def pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool = False,
        add_generation_prompt: bool = True,
    ) -> list[str]:
        """The prompt as texts that are to be encoded one by one. A name of a special token is whole in one of them only
        where the template prints it; names in contents are cut. Arguments and errors are those of `render`."""
        from jinja2.exceptions import TemplateError

        known = [self._cut(for_templates(message)) for message in messages]
        messages, tools = self._fit(known, [map_texts(tool, self._names.cut) for tool in tools])
        try:
            text = self._apply(messages, tools, thinking, add_generation_prompt)
        except TemplateError as refused:
            raise RequestError(f"the chat template refuses these messages: {refused}") from refused
        opening = opening_of(text)
        if opening and add_generation_prompt and not thinking:
            text = f"{text.rstrip()}\n\n{CLOSING[opening]}\n\n"
        return text.split(CUT)

    def _cut(self, message: Message) -> Message:
        names = self._assistant_names if message["role"] == "assistant" else self._names
        return cast(Message, {**map_texts(message, names.cut), "role": message["role"]})

    def fit(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[list[Message], Sequence[Tool]]:
        """The messages and tools to give to the template, with what it does not support put into words."""
        return self._fit([for_templates(message) for message in messages], tools)

    def _fit(self, fit: list[Message], tools: Sequence[Tool]) -> tuple[list[Message], Sequence[Tool]]:
        if has_tools(fit, tools) and not self._knows_tools:
            fit, tools = spell_tools(fit, tools), ()
        return (fit if self._knows_system else merge_system(fit)), tools

    def _apply(
        self, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool, add_generation_prompt: bool
    ) -> str:
        chat: list[Any] = [dict(message) for message in messages]
        text = self.tokenizer.apply_chat_template(
            chat,
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            strftime_now=TODAY.strftime,
            **template_arguments(thinking),
        )
        return str(text)

    @cached_property
    def _knows_system(self) -> bool:
        """Whether the template prints a system message, also after the result of a tool."""
        system = Message(role="system", content="@@rules@@")
        chats = [[system, _QUESTION], [system, _QUESTION, _CALL, _RESULT]]
        return all(self._shows(chat, (), "@@rules@@") for chat in chats[: 1 + self._knows_tools])

    @cached_property
    def _knows_tools(self) -> bool:
        """Whether the template prints tools, calls and results, and calls in a form that `read_calls` understands."""
        if not self._shows([_QUESTION, _CALL, _RESULT], (_TOOL,), "@@tool@@", "@@call@@", "@@result@@"):
            return False
        try:
            return read_calls(self._said(_CALL, (_TOOL,))) == ("", (Call("@@call@@", {"x": 1}),))
        except (RequestError, BrokenCall):
            return False

    def _shows(self, messages: Sequence[Message], tools: Sequence[Tool], *words: str) -> bool:
        from jinja2.exceptions import TemplateError

        try:
            text = self._apply(messages, tools, thinking=False, add_generation_prompt=True)
        except (TemplateError, TypeError):  # TypeError: the template joins an object as text
            return False
        return all(word in text for word in words)

    def answer(self, answer: Message, *, tools: Sequence[Tool]) -> str:
        """The text that a model of this family would write for an assistant's message, including calls of tools.

        Raises:
            RequestError: the template refuses the message (several calls at once, for instance).
        """
        from jinja2.exceptions import TemplateError

        if not answer.get("tool_calls") or not self._knows_tools:
            (spelled,) = spell_tools([for_templates(answer)], ())
            return spelled["content"]
        try:
            return self._said(for_templates(answer), tools)
        except TemplateError as refused:
            raise RequestError(f"the chat template refuses this answer: {refused}") from refused

    def reasoning(self, text: str, *, whole: bool = False) -> str:
        """A hidden chain of thought as a model of this family writes it before its answer.

        Args:
            text: the chain of thought.
            whole: with the opening mark even where the prompt of a thinking turn holds it.
        """
        mark, blank = self._reasoning_form
        given = "" if whole else self._apply([_QUESTION], (), thinking=True, add_generation_prompt=True)
        opened = opening_of(given)
        begun = "" if opened else f"{mark}{blank}"
        if opened and not given[-1].isspace():
            begun = blank
        return f"{begun}{text}{blank}{CLOSING[mark]}{blank * 2}"

    @cached_property
    def _reasoning_form(self) -> tuple[str, str]:
        """The mark that opens a hidden chain of thought, and what stands between mark and text."""
        prompts = [
            self._apply([_QUESTION], (), thinking, add_generation_prompt=True) for thinking in (True, False)
        ]
        source = "".join([*prompts, str(self.tokenizer.chat_template)])
        known = next((mark for mark in CLOSING if mark in source), next(iter(CLOSING)))
        mark = opening_of(prompts[0]) or known
        return mark, "\n" if mark == "<think>" else ""

    def _said(self, answer: Message, tools: Sequence[Tool]) -> str:
        """An assistant's message as the template prints it, without the beginning and end of the turn."""
        # Some templates print the tools elsewhere once a call is answered, so the chat holds a single question.
        begun = self._apply([_QUESTION], tools, thinking=False, add_generation_prompt=True)
        begun = _EMPTY_REASONING.sub("", begun)
        words = Message(role="assistant", content="@@answer@@")
        plain = self._apply([_QUESTION, words], tools, thinking=False, add_generation_prompt=False)
        whole = self._apply([_QUESTION, answer], tools, thinking=False, add_generation_prompt=False)
        ending = plain.rpartition(words["content"])[2]
        if not (whole.startswith(begun) and whole.endswith(ending)):
            raise RequestError("the chat template prints calls of tools as no model could write them")
        return split_reasoning(whole[len(begun) : len(whole) - len(ending)])[1].strip()
