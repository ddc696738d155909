"""How an environment action is written, in the words that prompts, structured output and parsing share."""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ActionFormat:
    """How an environment action is written.

    Attributes:
        regex: regular expression of an action; structured output is held to it.
        description: the format in words, one line for the prompt.
        sample: draws a random action for the random baseline; None if the format has no uniform draw.
        reads: regular expression of what is read as an action, if that is more than `regex`. The environment decides
            whether it is valid.
    """

    regex: str
    description: str
    sample: Callable[[random.Random], str] | None = None
    reads: str | None = None


def any_of(texts: Iterable[str]) -> str:
    """A regular expression that matches any of some texts, for `ActionFormat.regex`.

    Blanks stay unescaped: some structured-output engines reject an escaped one, and none needs it.
    """
    return "|".join(re.escape(text).replace("\\ ", " ") for text in dict.fromkeys(texts))
