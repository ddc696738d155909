"""Names of objects. A guess must be the whole name or a synonym, never only its last word."""

import re
import unicodedata
from functools import lru_cache

_ARTICLES = frozenset({"a", "an", "the", "some", "any"})
_IRREGULAR = {
    "mice": "mouse", "geese": "goose", "teeth": "tooth", "feet": "foot", "men": "man", "women": "woman",
    "children": "child", "people": "person",
    "glasses": "glasses",  # spectacles, not the plural of a drinking glass
}  # fmt: skip
_QUALIFIED = re.compile(r"(?P<name>[^()]+)\((?P<qualifier>[^()]+)\)")


def singular(word: str) -> str:
    """A stem that singular and plural share; it need not be a word."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 3 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith("ves"):
        word = word[:-3] + "f"
    elif re.search(r"(?:s|x|z|ch|sh)es$", word):
        word = word[:-2]
    elif len(word) > 3 and re.search(r"[^sui]s$", word):
        word = word[:-1]
    return word.removesuffix("e")


def words_of(text: str) -> tuple[str, ...]:
    """A text's words in lower case, without accents and punctuation; hyphens and underscores separate words."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return tuple(re.sub(r"[-_/]", " ", re.sub(r"['’.]", "", plain)).translate(_SPACED).split())


_SPACED = str.maketrans({c: " " for c in ',;:!?"()[]*'})


@lru_cache(maxsize=32768)
def key(text: str) -> str:
    """A key that spellings of a name share: without case, articles, plural endings, spaces and hyphens."""
    return "".join(singular(word) for word in words_of(text) if word not in _ARTICLES)


def split_qualifier(name: str) -> tuple[str, str | None]:
    """Split 'bat (animal)' into name and qualifier; the qualifier is None if the name has none."""
    match = _QUALIFIED.fullmatch(name.strip())
    return (match["name"].rstrip(), match["qualifier"]) if match else (name.strip(), None)


def is_last_words(part: str, name: str) -> bool:
    """Whether a text is the end of a longer name: 'dog' of 'hot dog'."""
    short, long = ([singular(w) for w in words_of(t) if w not in _ARTICLES] for t in (part, name))
    return 0 < len(short) < len(long) and long[-len(short) :] == short
