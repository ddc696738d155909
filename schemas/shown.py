"""Text that others wrote (models, environments, logs, file names), shown to people as text and never as markup."""

import html
import re
import unicodedata
from urllib.parse import quote

_KEPT = "\n\t"
# Controls, and what reorders or breaks lines unseen: categories Cc, Zl, Zp, and the marks of writing direction.
_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_UNSEEN = "".join(
    c for c in map(chr, range(0x2100)) if (unicodedata.category(c) in ("Cc", "Zl", "Zp") or c in _DIRECTIONS)
    and c not in _KEPT
)  # fmt: skip
_ESCAPES = str.maketrans({c: f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}" for c in _UNSEEN})
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()#+\-.!|~])")
_ADDRESSES = re.compile(r":(?=//)|@")  # MLflow's page shows a backslash before them


def visible(text: str) -> str:
    """A text for the terminal: control characters but newline and tab, and marks of writing direction, as \\x1b."""
    return text.translate(_ESCAPES)


def markdown(text: str) -> str:
    """A text as one line of Markdown that renders as the text itself: no HTML, no link, no code, no table."""
    line = " ".join(visible(text).split())
    escaped = _PUNCTUATION.sub(r"\\\1", html.escape(line, quote=False))
    return _ADDRESSES.sub(lambda found: f"&#{ord(found[0])};", escaped)


def counted(number: int, one: str) -> str:
    """A number of things, for people: 1 row, 2 rows."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def link(label: str, url: str) -> str:
    """A link in Markdown, whose address can't end it."""
    return f"[{markdown(label)}]({quote(url, safe=':/?#@!$&*+,;=%')})"
