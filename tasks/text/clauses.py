"""Clauses and words of a text for the leak check: which clauses assert, and which words mean the same.

English only, and by words only.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

SENTENCE = re.compile(r"(?:[^.!?;\n]|\.(?=\d))+\??")
JOINT = re.compile(
    r"(\b(?:but|however|yet|although|though|because|since|whereas|actually|in fact|indeed)\b|[—–]|\s-\s"
    r"|(?:,|(?<!\s)|(?<=-\s))\s*+\b(?:and|or|so|then|therefore|thus)\b|[,:])"
)
_HOLDS_ON = re.compile(r",?\s*(?:and|or|so|then|therefore|thus)")
_CONDITION = re.compile(
    r"\b(?:if|unless|suppos(?:e|ing)|assuming|imagine|in case|provided|depending|otherwise|either)\b|"
    r"^\W*(?:should|(?:option|case|scenario|possibility|alternative)\b[^:]*$)"
)
_HEDGE = re.compile(
    r"\b(?:would|might|may|could|can|should|were to|whether|perhaps|maybe|probab\w+|likel\w+|possib\w+|presumably|"
    r"potential\w*|plausibl[ey]|hypothetical\w*|expect|hope\w*|guess that|seems?|appears?|chances?|risk\w*|"
    r"i (?:think|believe|suspect|assume|wonder)|i will|let (?:me|us)|i (?:need|want|plan) to|"
    r"not (?:yet )?(?:know|known|clear|certain|sure)|unknown|unclear|uncertain|no (?:idea|sign|evidence))\b"
)
_QUOTED = re.compile(r"[\"“][^\"”]*(?:[\"”]|$)")

SHORT_FORMS = (
    ("’", "'"),
    ("can't", "cannot"),
    ("n't", " not"),
    ("'s", " is"),
    ("'re", " are"),
    ("'ll", " will"),
)
_WORD = re.compile(r"[^\W_]+")
_ENDING = re.compile(r"(?<=\w{3})(?:ies|ied|ing|ed|es|(?<!s)s|ly|e|y)$")
_DOUBLED = re.compile(r"([bdgmnprt])\1$")
_NUMBERS = _WORD.findall(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)

Words = tuple[str, ...]


def clauses_of(text: str) -> Iterator[tuple[str, bool]]:
    """Each clause, and whether it asserts.

    A condition extends to the end of its sentence, a hedge across "and" and "so"; "but", "because" and the like end
    both. A question asserts nothing.
    """
    for sentence in SENTENCE.findall(text):
        condition = hedge = False
        parts = ["", *JOINT.split(sentence)]  # joint, clause, joint, clause ...
        for joint, clause in list(pairwise(parts))[::2]:
            holds_on = _HOLDS_ON.fullmatch(joint) is not None
            own = _QUOTED.sub("", clause)  # a hedge inside a quotation does not hedge the quotation itself
            condition = (condition and (holds_on or joint in ",:")) or _CONDITION.search(own) is not None
            hedge = (hedge and holds_on) or _HEDGE.search(own) is not None
            yield clause, not (condition or hedge or sentence.endswith("?"))


def plain(text: str) -> str:
    """The text in lower case, with contractions expanded."""
    text = text.lower()
    for short, full in SHORT_FORMS:
        text = text.replace(short, full)
    return text


def words_of(text: str) -> Words:
    """The stems of the words; numbers by their value."""
    return tuple(
        str(_NUMBERS.index(word)) if word in _NUMBERS else _DOUBLED.sub(r"\1", _ENDING.sub("", word))
        for word in _WORD.findall(text)
    )


def rows_of(words: Words, length: int) -> set[Words]:
    """All n-grams of `length` words."""
    return {words[i : i + length] for i in range(len(words) - length + 1)}


def content_of(words: Words) -> frozenset[str]:
    """The words that carry a fact: without articles, pronouns, auxiliaries and the like."""
    return frozenset(words) - _FRAME - _DENIALS


def denies(words: Words) -> bool:
    """Whether a clause denies something."""
    return not _DENIALS.isdisjoint(words)


_DENIALS = frozenset(words_of("no not never none nothing cannot"))
_FRAME = frozenset(  # function words, and words that every text of a role has
    words_of(
        "a an the this that these those it its he she they we i you his her their your our my him them us me there "
        "here is are was were be been being am do does did has have had will would can could may might must shall of "
        "in on at to from by with for as into than about and or but if so then when while which who what where how "
        "more most very just only also too again next now yes agent user player game environment turn step thought "
        "action say answer reply respond report show result"
    )
)
