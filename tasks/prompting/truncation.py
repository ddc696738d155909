"""Fitting prompts into the context window: what is left out, by one rule, for every role, in training as in inference.

A prompt that fits is left as it is. Else, in this order:

1. Whole exchanges of the history go (an action and what was seen after it), oldest first, as few as will do. The task
   (what was seen first) and the observation to act on stay (`storage.history.State.without_oldest`).
2. Where that is not enough, every text in the prompt that is longer than some limit loses its middle; the limit is as
   large as will do.

A note stands in the prompt where something is left out, and what was left out is counted in the row (`Generation`,
`TrainingRow`). What does not fit even so goes to the engine as it is, which refuses it: a row with a status.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from storage.history import State, without_middle
from tasks.chat.messages import Message, RequestError, Tool
from tasks.chat.tokenizers import ChatTokenizer

# A chat template's own tokens, at most: around a message, and around them all. No tokenizer in use makes more tokens
# of a text than it has bytes, so that a short prompt need not be tokenised to know that it fits.
AROUND_MESSAGE, AROUND_PROMPT = 16, 64
SHORTEST, STEP = 64, 32  # characters: no text is cut to less; limits tried are so far apart


@dataclass(frozen=True)
class Dropped:
    """What was left out of a prompt: exchanges of the history, and characters, those of the exchanges included."""

    turns: int = 0
    chars: int = 0


NOTHING = Dropped()


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        messages: the chat.
        dropped: what was left out of it.
        template: the template that it was rendered from; part of the key of its random stream.
        digest: sha256 (12 hex) of the template.
        tools: on offer, for the chat template.
    """

    messages: tuple[Message, ...]
    dropped: Dropped = NOTHING
    template: str = ""
    digest: str = ""
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True)
class Window:
    """A context window.

    Attributes:
        length: tokens that a prompt and its completion may have together.
        tokenizer: gives the tokenizer that counts them; asked only where a prompt may not fit.
        tools: on offer in the prompt.
    """

    length: int
    tokenizer: Callable[[], ChatTokenizer]
    tools: Sequence[Tool] = ()

    def holds(self, messages: Sequence[Message], reserve: int, label: Sequence[str] = ()) -> bool:
        """Whether a prompt fits, with room for `reserve` tokens of completion, or for a given one if it is longer."""
        said = [message["content"] + _calls(message) for message in messages]
        most = sum(len(text.encode()) + AROUND_MESSAGE for text in said) + AROUND_PROMPT
        most += len(json.dumps(list(self.tools)).encode()) if self.tools else 0
        if most + max(reserve, sum(len(text.encode()) + 1 for text in label)) <= self.length:
            return True
        chat = self.tokenizer()
        given = sum(map(len, chat.segment_ids(label))) + len(chat.end_ids) if label else 0
        return len(chat.prompt_ids(messages, tools=self.tools)) + max(reserve, given) <= self.length


def _calls(message: Message) -> str:
    return json.dumps(message["tool_calls"]) if "tool_calls" in message else ""


def fit(
    variables: Mapping[str, Any],
    render: Callable[[Mapping[str, Any]], tuple[Message, ...]],
    holds: Callable[[tuple[Message, ...]], bool],
) -> Prompt:
    """Render a prompt with as little left out of it as will do; see the module.

    Args:
        variables: what the template is given: `state` is the history, other texts may stand in lists and dataclasses.
        render: variables -> messages.
        holds: whether messages fit.
    """
    messages = render(variables)
    try:
        if holds(messages):
            return Prompt(messages)
        return _shortened(variables, messages, render, holds)
    except RequestError:
        return Prompt(
            messages
        )  # no chat template, or one that refuses these messages: the engine will say so


def _shortened(
    variables: Mapping[str, Any],
    messages: tuple[Message, ...],
    render: Callable[[Mapping[str, Any]], tuple[Message, ...]],
    holds: Callable[[tuple[Message, ...]], bool],
) -> Prompt:
    found = variables.get("state")
    state = found if isinstance(found, State) else State((), "")
    turns = len(state.turns)
    if turns and render({**variables, "state": replace(state, turns=())}) == messages:
        turns = 0  # this template does not show them

    def without(count: int) -> Mapping[str, Any]:
        return {**variables, "state": state.without_oldest(count)} if count else variables

    if turns and holds(rest := render(without(turns))):
        fewest = 1 + bisect_left(range(1, turns), True, key=lambda count: holds(render(without(count))))
        shown = rest if fewest == turns else render(without(fewest))
        return Prompt(shown, Dropped(fewest, state.chars_of_oldest(fewest)))
    left = without(turns)
    limits = range(SHORTEST, max(map(len, _texts(left)), default=SHORTEST) + STEP, STEP)
    too_long = bisect_left(limits, True, key=lambda limit: not holds(render(_cut(left, limit))))
    limit = limits[max(too_long - 1, 0)]
    gone = sum(max(0, len(text) - limit) for text in _texts(left))
    chars = gone + (state.chars_of_oldest(turns) if turns else 0)
    return Prompt(render(_cut(left, limit)), Dropped(turns, chars))


def _cut(value: Any, limit: int) -> Any:
    """A value with the middle of its long texts left out, those in mappings, sequences and dataclasses too."""
    made = value
    if isinstance(value, str):
        made = without_middle(value, limit)
    elif isinstance(value, Mapping):
        made = {name: _cut(part, limit) for name, part in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(_cut(part, limit) for part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        made = replace(value, **{f.name: _cut(getattr(value, f.name), limit) for f in fields(value)})
    return made


def _texts(value: object) -> list[str]:
    """All texts that `_cut` would look at."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    if is_dataclass(value) and not isinstance(value, type):
        return [text for f in fields(value) for text in _texts(getattr(value, f.name))]
    return []
