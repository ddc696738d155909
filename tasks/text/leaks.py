"""Measures what a rewritten thought still gives away (paper, appendix B.2).

A leak is an *asserted* privileged fact, or a phrase that names the source. Conjecture is not a leak, nor is anything
that the student sees. In a clause that asserts, three things count as a privileged fact:

- `ngram` consecutive words of the privileged text;
- its words in another order: more than half of the clause's content words, and at least `ngram` // 2, come from one
  privileged sentence, and the student sees at least one of them nowhere;
- a privileged clause of fewer than `ngram` words ("Yes.") that the clause reports ("he answers yes").

By the first two, a denial of a privileged fact is not a leak, nor is the assertion of a denied one.

Words are compared by stem, numbers by value. Synonyms go undetected; docs/leaks.md has the figures.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tasks.text.clauses import (
    JOINT,
    SENTENCE,
    Words,
    clauses_of,
    content_of,
    denies,
    plain,
    rows_of,
    words_of,
)

# Phrases that name a source. The group `event` names things that exist for the student too, so it counts only in an
# assertion ("the next observation shows", but not "the next observation may show").
SOURCE_OF_TARGET = re.compile(
    r"\b(?:as (?:given|shown|stated|described|known)(?! (?:in|by|above|earlier))|given in advance|was given|were told|"
    r"we (?:already )?know(?! from)|in (?:hindsight|retrospect)|(?:it|things|as it) turn(?:s|ed) out|"
    r"looking back|knowing (?:the|how|that)|given the (?:outcome|result)|"
    r"(?:the )?forecast|(?:the )?prediction (?:says|shows)|what happened next|"
    r"according to the (?:outcome|result|environment)|"
    r"(?P<event>(?:the )?next (?:observation|state)|(?:the )?observation (?:shows|says|states)|"
    r"(?:the )?reward (?:is|was|of)))\b"
)
SOURCE_OF_THOUGHT = re.compile(
    r"\b(?:(?:the )?(?:critique|critic|criticism|evaluation|evaluator|feedback|assessment|reviewer|verdict|advice|"
    r"suggestion|recommendation|judgement)|"
    r"as (?:advised|suggested|instructed|recommended)|(?:i was|was i) (?:told|advised)|pointed out|"
    r"(?:the )?(?:predicted|possible) futures?|(?:the )?forecast|"
    r"my (?:previous|earlier|first|last) (?:answer|attempt)|the (?:previous|earlier) (?:answer|attempt)|"
    r"improved answer|not optimal|(?<!the )answer \d)\b"
)

_REPORT = re.compile(r"\b(?:answer|say|said|repl|respon|report|show|return|confirm|result|outcome|hint)\w*")
_PAST = re.compile(r"\b(?:was|were|said|\w{3,}ed)\b")

_LABEL = re.compile(r"^[^\S\n]*(?:thought|action|future):", re.MULTILINE)


@dataclass(frozen=True)
class Leak:
    """The share of a thought's words inside leaks (0 to 1), and the passages."""

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
    """Measure the leak of a thought.

    Args:
        thought: the reasoning to check.
        privileged: texts that the student will not see.
        visible: texts that the student sees; what they also say is not a leak.
        source: phrases that name the privileged source; its group `event` counts only in clauses that assert.
        ngram: number of consecutive words that count as copied.
    """
    if not thought.strip():
        return Leak(0.0, ())
    seen = plain("\n".join(visible))
    secrets = _Secrets(plain("\n".join(privileged)), seen, ngram)
    leaking = total = 0
    passages: list[str] = []
    for clause, asserted in clauses_of(plain(thought)):
        words = words_of(clause)
        marked: set[int] = set()
        if asserted:
            marked = secrets.in_a_row(words) | secrets.reordered(words) | secrets.reported(clause, words)
        for match in source.finditer(clause):
            if match.group() not in seen and (asserted or match.lastgroup != "event"):
                first = len(words_of(clause[: match.start()]))
                marked |= set(range(first, first + len(words_of(match.group()))))
        if marked:
            passages.append(clause.strip())
        leaking += len(marked)
        total += len(words)
    return Leak(leaking / max(total, 1), tuple(passages))


class _Secrets:
    """The privileged facts, indexed for lookup by a clause that asserts."""

    def __init__(self, privileged: str, visible: str, ngram: int) -> None:
        sentences = SENTENCE.findall(_LABEL.sub("", privileged))
        clauses = [clause for sentence in sentences for clause in JOINT.split(sentence)[::2]]
        said = [words for text in {*sentences, *clauses} if (words := words_of(text))]
        self.ngram, self.seen = ngram, words_of(visible)
        known = rows_of(self.seen, ngram)
        self.rows = {(row, denies(words)) for words in said for row in rows_of(words, ngram) - known}
        self.contents = {(content_of(words), denies(words)) for words in said}
        self.short = {words for words in said if len(words) < ngram}

    def in_a_row(self, words: Words) -> set[int]:
        """Positions of n-grams that the privileged text has and the visible text lacks."""
        denied, length = denies(words), self.ngram
        starts = range(len(words) - length + 1)
        return {s + i for s in starts if (words[s : s + length], denied) in self.rows for i in range(length)}

    def reordered(self, words: Words) -> set[int]:
        """Positions of content words from one privileged sentence, in any order."""
        content = content_of(words)
        found: set[str] = set()
        for secret, denied in self.contents:
            shared = content & secret
            enough = len(shared) >= self.ngram // 2 and 2 * len(shared) > len(content)
            if enough and denied == denies(words) and not shared <= set(self.seen):
                found |= shared
        return {i for i, word in enumerate(words) if word in found}

    def reported(self, clause: str, words: Words) -> set[int]:
        """Positions of a short privileged clause after a reporting verb."""
        report = _REPORT.search(clause)
        if report is None:
            return set()
        first = len(words_of(clause[: report.end()]))
        found: set[int] = set()
        for secret in self.short:
            if _PAST.search(clause) and secret in rows_of(self.seen, len(secret)):
                continue  # it may refer to an earlier turn, which the student sees
            for start in range(first, first + 3):  # "answers yes", "answer is a yes"
                if words[start : start + len(secret)] == secret:
                    found |= set(range(start, start + len(secret)))
        return found
