"""Measuring what a rewritten thought still gives away (paper, appendix B.2).

A leak is a privileged fact *asserted*: words in a row taken from the privileged text, not in what the
student sees, outside conditional or modal clauses; or a phrase that names the source. Conjecture is not a
leak.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"[^.!?;\n]+")
_CLAUSE = re.compile(r",|:|\b(?:so|because|since|but|and|therefore|thus)\b")
_CONDITIONAL = re.compile(r"\b(?:if|unless|suppose|supposing|assuming|whether|in case|provided|should)\b")
_MODAL = re.compile(
    r"\b(?:would|might|may|could|can|perhaps|probably|likely|possibly|maybe|presumably|expect|hope|guess that|"
    r"i think|seems?|appears?|chances?)\b"
)

SOURCE_OF_TARGET = re.compile(
    r"\b(?:as (?:given|shown|stated|described|known)|given in advance|was given|were told|we (?:already )?know|"
    r"(?:the )?next observation|(?:the )?observation (?:shows|says|states)|(?:the )?forecast|"
    r"(?:the )?prediction (?:says|shows)|"
    r"(?:the )?reward (?:is|was|of)|in hindsight|what happened next|according to the (?:outcome|result|environment))\b"
)
SOURCE_OF_THOUGHT = re.compile(
    r"\b(?:(?:the )?(?:critique|evaluation|evaluator|feedback|assessment|reviewer)|as (?:advised|suggested|instructed)|"
    r"(?:the )?(?:predicted|possible) futures?|(?:the )?forecast|"
    r"(?:my|the) (?:previous|earlier|last) (?:answer|attempt)|"
    r"improved answer|not optimal|answer \d+)\b"
)


@dataclass(frozen=True)
class Leak:
    """What was found: the share of the thought's words inside leaks (0..1), and the passages."""

    share: float
    passages: tuple[str, ...]


def find_leaks(
    thought: str,
    *,
    privileged: Iterable[str],
    visible: Iterable[str],
    source: re.Pattern[str],
    ngram: int = 4,
) -> Leak:
    """Measure a thought.

    Args:
        thought: the reasoning to be checked.
        privileged: texts that the student will not see.
        visible: texts that it does see; words in a row that stand there too are no leak.
        source: phrases that name the privileged source, whatever clause they stand in.
        ngram: words in a row that count as taken over.
    """
    secret = _ngrams(privileged, ngram) - _ngrams(visible, ngram)
    leaking = total = 0
    passages: list[str] = []
    for clause, asserted in _clauses(thought.lower()):
        words = _WORD.findall(clause)
        total += len(words)
        marked = [False] * len(words)
        if asserted:
            for start in range(len(words) - ngram + 1):
                if tuple(words[start : start + ngram]) in secret:
                    marked[start : start + ngram] = [True] * ngram
        for match in source.finditer(clause):
            first = len(_WORD.findall(clause[: match.start()]))
            count = len(_WORD.findall(match.group()))
            marked[first : first + count] = [True] * count
        if any(marked):
            passages.append(clause.strip())
        leaking += sum(marked)
    return Leak(leaking / total if total else 0.0, tuple(passages))


def _ngrams(texts: Iterable[str], ngram: int) -> set[tuple[str, ...]]:
    grams: set[tuple[str, ...]] = set()
    for text in texts:
        words = _WORD.findall(text.lower())
        grams.update(tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1))
    return grams


def _clauses(text: str) -> Iterable[tuple[str, bool]]:
    """Each clause, and whether it asserts. The consequent of a condition in the same sentence does not."""
    for sentence in _SENTENCE.findall(text):
        conditional = False
        for clause in _CLAUSE.split(sentence):
            conditional = conditional or _CONDITIONAL.search(clause) is not None
            yield clause, not conditional and _MODAL.search(clause) is None
