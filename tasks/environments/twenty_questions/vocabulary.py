"""The words of questions that the table of facts can answer: kinds of objects, facts, and sizes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from tasks.environments.twenty_questions.names import key, singular, words_of

Frame = Literal["is", "does", "has", "made", "used", "you", "in"]
FOLDER = Path(__file__).parent / "data"
FILES = {name: FOLDER / f"{name}.yaml" for name in ("categories", "facts", "sizes")}

_SMALL = frozenset(
    ("a", "an", "the", "some", "any", "your", "his", "her", "their", "its", "own", "it", "them", "thing", "things",
     "something", "stuff", "very", "quite")
)  # fmt: skip
_SPELLINGS = {
    "colour": "color",
    "coloured": "colored",
    "gray": "grey",
    "aluminium": "aluminum",
    "someones": "",
}


@lru_cache(maxsize=8192)
def stems(text: str) -> tuple[str, ...]:
    """A key that wordings of a phrase share: without case, function words, and endings of nouns and verbs."""
    words = (_SPELLINGS.get(word, word) for word in words_of(text))
    return tuple(_stem(word) for word in words if word and word not in _SMALL)


def _stem(word: str) -> str:
    """A stem that 'cut', 'cuts' and 'cutting' share; it need not be a word."""
    word = singular(word)
    for ending, shortest in (("ing", 3), ("ed", 3)):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= shortest and set(stem) & set("aeiouy"):
            word = stem[:-1] if stem[-1] == stem[-2] and stem[-1] not in "sle" else stem
            break
    return word.removesuffix("e")


@dataclass(frozen=True)
class Vocabulary:
    """Kinds, facts and sizes, and the phrases that ask for them.

    Attributes:
        parents: kind -> the kind above it.
        implied: kind -> facts of its members.
        kinds: spelling of a kind (`names.key`) -> kind.
        phrases: fact -> frame -> phrases.
        facts: (frame, stems) -> facts that the phrase asks for; `validate` checks that there is one.
        by_size: size -> facts that follow from it.
        yardsticks: spelling -> its position on the scale of sizes.
        place: file of the facts, for messages.
    """

    parents: Mapping[str, str]
    implied: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, str]
    phrases: Mapping[str, Mapping[Frame, tuple[str, ...]]]
    facts: Mapping[tuple[Frame, tuple[str, ...]], tuple[str, ...]]
    by_size: Mapping[int, tuple[str, ...]]
    yardsticks: Mapping[str, float]
    place: Path

    def fact(self, frame: Frame, text: str) -> str | None:
        """The fact that a phrase asks for; None if there is none."""
        found = self.facts.get((frame, stems(text)), ())
        return found[0] if found else None

    def with_parents(self, kinds: Iterable[str]) -> Iterator[str]:
        """Kinds, then the kinds above them, each once.

        Raises:
            KeyError: no such kind.
        """
        seen: dict[str, None] = {}
        level = list(kinds)
        while level:
            for kind in level:
                if kind not in self.implied:
                    raise KeyError(kind)
            seen |= dict.fromkeys(level)
            level = [self.parents[kind] for kind in level if kind in self.parents]
        yield from seen

    def facts_of(self, kinds: Iterable[str], size: str, own: Iterable[str]) -> frozenset[str]:
        """All facts of an object: those of its kinds, those of its size, and its own, which can remove others
        ('-flies').

        Raises:
            KeyError: no such kind or fact.
        """
        true: set[str] = set()
        for kind in reversed(list(self.with_parents(kinds))):
            true = self._changed(true, self.implied[kind])
        if size:
            true = self._changed(true, self.by_size.get(int(size), ()))
        return frozenset(self._changed(true, own))

    def _changed(self, facts: set[str], by: Iterable[str]) -> set[str]:
        facts = set(facts)
        for change in by:
            name = change.removeprefix("-")
            if name not in self.phrases:
                raise KeyError(name)
            if change == name:
                facts.add(name)
            else:
                facts.discard(name)
        return facts


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """The shipped vocabulary."""
    kinds: dict[str, Any] = _load("categories")
    facts: dict[str, dict[Frame, list[str]]] = _load("facts")
    sizes: dict[str, Any] = _load("sizes")
    asked: dict[tuple[Frame, tuple[str, ...]], tuple[str, ...]] = {}
    for fact, frames in facts.items():
        for frame, phrases in frames.items():
            for phrase in phrases:
                known = asked.setdefault((frame, stems(phrase)), ())
                if fact not in known:
                    asked[frame, stems(phrase)] = (*known, fact)
    return Vocabulary(
        parents={kind: entry["parent"] for kind, entry in kinds.items() if "parent" in entry},
        implied={kind: tuple(entry["facts"]) for kind, entry in kinds.items()},
        kinds={key(name): kind for kind, entry in kinds.items() for name in (kind, *entry["names"])},
        phrases={fact: {f: tuple(p) for f, p in frames.items()} for fact, frames in facts.items()},
        facts=asked,
        by_size={int(size): tuple(said) for size, said in sizes["facts"].items()},
        yardsticks={key(name): float(at) for name, at in sizes["yardsticks"].items()},
        place=FILES["facts"],
    )


def _load(name: str) -> Any:
    return yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
