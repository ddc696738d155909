"""Measuring what a rewritten thought still gives away (paper, appendix B.2).

A leak is a privileged fact *asserted*, or a phrase that names the source. Conjecture is not a leak, nor is what the
student sees. In a clause that asserts, three things count as a privileged fact:

- a row of `ngram` words of the privileged text;
- its words in another order: more than half of the clause's content words come from one privileged sentence, at least
  `ngram` // 2 of them, one of them seen nowhere by the student;
- a privileged clause shorter than such a row ("Yes.") that the clause reports ("he answers yes").

A denial of what the privileged text says, or the other way round, is no leak by the first two.

Words are compared by their stems, numbers by their value. Synonyms are not seen; docs/leaks.md has the figures.
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

# What a thought may have read. The group `event` names what exists for its reader too: it counts only where something
# is asserted of it ("the next observation shows", but not "the next observation may show").
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

_LABEL = re.compile(r"^\s*(?:thought|action|future):", re.MULTILINE)


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
        visible: texts that it does see; what stands there too is no leak.
        source: phrases that name the privileged source; its group `event` counts in asserting clauses only.
        ngram: words in a row that count as taken over.
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
    """What the privileged text says, ready to be looked for in a clause that asserts."""

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
        """Positions of words in a row that the privileged text has and the visible text lacks."""
        denied, length = denies(words), self.ngram
        starts = range(len(words) - length + 1)
        return {s + i for s in starts if (words[s : s + length], denied) in self.rows for i in range(length)}

    def reordered(self, words: Words) -> set[int]:
        """Positions of content words taken from one privileged sentence, in any order."""
        content = content_of(words)
        found: set[str] = set()
        for secret, denied in self.contents:
            shared = content & secret
            enough = len(shared) >= self.ngram // 2 and 2 * len(shared) > len(content)
            if enough and denied == denies(words) and not shared <= set(self.seen):
                found |= shared
        return {i for i, word in enumerate(words) if word in found}

    def reported(self, clause: str, words: Words) -> set[int]:
        """Positions of a short privileged clause that follows a word of reporting."""
        report = _REPORT.search(clause)
        if report is None:
            return set()
        first = len(words_of(clause[: report.end()]))
        found: set[int] = set()
        for secret in self.short:
            if _PAST.search(clause) and secret in rows_of(self.seen, len(secret)):
                continue  # an earlier turn may be meant, which the student sees
            for start in range(first, first + 3):  # "answers yes", "answer is a yes"
                if words[start : start + len(secret)] == secret:
                    found |= set(range(start, start + len(secret)))
        return found
