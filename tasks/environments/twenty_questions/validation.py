"""Checks of objects and vocabulary: only an object's full names win, and every fact can be asked."""

from collections.abc import Iterator, Sequence

from tasks.environments.twenty_questions.names import is_last_words, key, words_of
from tasks.environments.twenty_questions.oracles import FORMS, Facts
from tasks.environments.twenty_questions.questions import read_question
from tasks.environments.twenty_questions.things import Thing
from tasks.environments.twenty_questions.vocabulary import Vocabulary


def faults(things: Sequence[Thing], vocabulary: Vocabulary) -> list[str]:
    """Faults of a table of objects and of the vocabulary, one line each."""
    found = [*_names(things)]
    known = [thing for thing in things if thing.facts is not None]
    if known:
        found += [*_questions(known, vocabulary), *_twins(known)]
    return found


def _names(things: Sequence[Thing]) -> Iterator[str]:
    """Guesses that should win and do not, or win and should not."""
    for thing in things:
        for name in (thing.name, *thing.synonyms, thing.title):
            named = read_question(f"Is it a {name}?").named
            if named is None or not thing.wins(named):
                yield f"{thing.title}: asking for a {name} does not win"
            own = {key(thing.name), *map(key, thing.synonyms)}
            words = words_of(name) if "(" not in name else ()
            ends = (" ".join(words[n:]) for n in range(1, len(words)))
            yield from (
                f"{thing.title}: {end} alone wins" for end in ends if thing.wins(end) and key(end) not in own
            )
        for synonym in thing.synonyms:
            if is_last_words(synonym, thing.name):
                yield f"{thing.title}: its synonym {synonym} is only the end of its name; remove it"
    spelled = {key(thing.name): thing for thing in things}
    for thing in things:
        for other in (spelled[end] for end in _ends(thing.name) if end in spelled):
            if thing.wins(other.name):
                yield f"{thing.title}: asking for a {other.name}, another object, wins"


def _ends(name: str) -> list[str]:
    words = words_of(name)
    return [key(" ".join(words[n:])) for n in range(1, len(words))]


def _questions(things: Sequence[Thing], vocabulary: Vocabulary) -> Iterator[str]:
    """Facts and kinds that can't be asked or are answered wrongly."""
    oracle = Facts(things, vocabulary)
    for (frame, words), facts in vocabulary.facts.items():
        if len(facts) > 1:
            yield f"facts: '{frame} {' '.join(words)}' may mean {' or '.join(facts)}; leave one of them"
    for fact, frames in vocabulary.phrases.items():
        holders = [thing for thing in things if fact in (thing.facts or ())]
        for frame, phrases in frames.items():
            for text in (f"{form}{phrase}?" for phrase in phrases for form in FORMS[frame]):
                question = read_question(text)
                wrong = [
                    t.title for t in things if oracle.answer(t, question) != ("Yes" if t in holders else "No")
                ]
                if wrong:
                    yield f"facts: '{text}' is answered wrongly for {wrong[0]} (fact {fact})"
    for kind in sorted(set(vocabulary.kinds.values())):
        question = read_question(f"Is it a kind of {kind}?")
        for thing in things:
            if oracle.answer(thing, question) != ("Yes" if kind in thing.categories else "No"):
                yield f"categories: 'Is it a kind of {kind}?' is answered wrongly for {thing.title}"


def _twins(things: Sequence[Thing]) -> Iterator[str]:
    """Objects that no question distinguishes."""
    alike: dict[object, Thing] = {}
    for thing in things:
        twin = alike.setdefault((thing.facts, thing.size, frozenset(thing.categories)), thing)
        if twin is not thing:
            yield f"facts: nothing distinguishes {twin.title} from {thing.title}; add a fact to one of them"
