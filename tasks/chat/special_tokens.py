"""Names of special tokens inside contents, made ordinary text: only a chat's frame may begin or end a turn.

A tokenizer reads the name of a special token as that token wherever it stands, so an observation could forge turns.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

CUT = "\ufdd0"
"""Where a text is cut into pieces that are encoded apart. It is no character in Unicode, so no text should hold it."""

_JOINER = "\u2060"  # word joiner: shows nothing

# What begins and ends turns in the templates of known families, for servers whose tokenizer is not at hand.
_TURNS = re.compile(
    r"<\|[^][<>|\s]{1,64}\|?>"  # ChatML, Llama 3, Phi, Granite, Gemma 4 ...
    r"|<[^][<>|\s]{1,64}\|>"  # Gemma 4
    r"|<｜[^][<>｜\s]{1,64}｜>"  # DeepSeek
    r"|\[\|[^][<>|\s]{1,64}\|\]"  # EXAONE
    r"|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|<</?SYS>>"  # Llama 2, Mistral, Gemma
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CONTENT)\]"  # Llama 2, Mistral
)

_Value = TypeVar("_Value")
TEXTS = 1024  # instructions and keys stand in every chat


class TokenNames:
    """Finds names of tokens in texts, overlapping ones too, in time linear in the text.

    Args:
        names: of tokens. One of a single character can't be cut, and is left.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if len(name) > 1)
        self._lengths = sorted({len(name) for name in self._names})
        first, second = ("".join({re.escape(name[at]) for name in self._names}) for at in (0, 1))
        self._start = re.compile(f"[{first}](?=[{second}])" if first else r"\Z.")
        self.cut = lru_cache(maxsize=TEXTS)(self._cut)

    def _cut(self, text: str) -> str:
        """The text with CUT behind the first character of every name."""
        text = text.replace(CUT, "\N{REPLACEMENT CHARACTER}")
        starts = [at for at in map(re.Match.start, self._start.finditer(text)) if self._begins(text, at)]
        edges = [0, *(at + 1 for at in starts), len(text)]
        return CUT.join(text[a:b] for a, b in pairwise(edges)) if starts else text

    def _begins(self, text: str, at: int) -> bool:
        return any(text[at : at + length] in self._names for length in self._lengths)


def map_texts(value: _Value, change: Callable[[str], str]) -> _Value:
    """Every text of a message or a tool changed, keys included."""
    return _mapped(value, change)  # type: ignore[no-any-return]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(part, change) for key, part in value.items()}
    return [_mapped(part, change) for part in value] if isinstance(value, list | tuple) else value


def escape(text: str) -> str:
    """A text in which no name of a token that begins or ends a turn is whole: an invisible word joiner stands behind
    its first character. For servers, which encode contents themselves."""
    return _TURNS.sub(lambda name: f"{name[0][0]}{_JOINER}{name[0][1:]}", text)
