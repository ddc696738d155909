"""The oracles that answer questions: the table of facts, or a model."""

from collections.abc import Sequence
from typing import Literal

from tasks.chat.messages import Message
from tasks.environments.base import Ask, EnvironmentModelUnreadable
from tasks.environments.twenty_questions.names import key
from tasks.environments.twenty_questions.questions import Question
from tasks.environments.twenty_questions.things import Thing
from tasks.environments.twenty_questions.vocabulary import Frame, Vocabulary
from tasks.text.action_format import any_of

Answer = Literal["Yes", "No", "Invalid"]
ANSWERS: dict[str, Answer] = {"yes": "Yes", "no": "No", "invalid": "Invalid"}
ANSWER_REGEX = "Yes|No|Invalid"
# The beginnings of each frame's questions, for structured output and for `validate`.
FORMS: dict[Frame, tuple[str, ...]] = {
    "is": ("Is it ", "Is it a ", "Is it an ", "Are they "),
    "does": ("Does it ", "Can it "),
    "has": ("Does it have ", "Does it have a ", "Is it something that has "),
    "made": ("Is it made of ",),
    "used": ("Is it used to ", "Is it used for "),
    "you": ("Can you ", "Do people "),
    "in": ("Is it found in ", "Would you find it in a "),
}


class Facts:
    """Answers from a table of facts, without a model. A fact that is not in the table is false; a question that can't
    be parsed is Invalid.

    Args:
        things: the objects, all with facts.
        vocabulary: the words of questions.
    """

    def __init__(self, things: Sequence[Thing], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._titles = [thing.title for thing in things]
        self._sizes = {
            key(name): thing.size for thing in things for name in (thing.name, thing.title, *thing.synonyms)
        }

    def questions(self) -> str:
        """A regular expression of questions with a yes-or-no answer: every phrase of every fact, the kinds, and the
        objects by name. `answer` also understands other wordings."""
        phrases: dict[Frame, list[str]] = {frame: [] for frame in FORMS}
        phrases["is"] += [*self._vocabulary.implied, *self._titles]
        for frames in self._vocabulary.phrases.values():
            for frame, ways in frames.items():
                phrases[frame] += ways
        return "|".join(rf"(?:{any_of(FORMS[frame])})(?:{any_of(ways)})\?" for frame, ways in phrases.items())

    def answer(self, thing: Thing, question: Question) -> Answer:
        """Answer a question that does not name the object."""
        if question.compared is not None:
            return self._compare(thing, question.compared, bigger=question.bigger)
        for frame, words in question.readings:
            kind = self._vocabulary.kinds.get(key(words)) if frame == "is" else None
            if kind is not None:
                return "Yes" if kind in thing.categories else "No"
            fact = self._vocabulary.fact(frame, words)
            if fact is not None:
                return "Yes" if fact in (thing.facts or ()) else "No"
        return "No" if question.named is not None and key(question.named) in self._sizes else "Invalid"

    def _compare(self, thing: Thing, other: str, *, bigger: bool) -> Answer:
        """Compare by size. Objects of equal or unknown size can't be compared."""
        measure = self._vocabulary.yardsticks.get(key(other), self._sizes.get(key(other)))
        if thing.size is None or measure is None or measure == thing.size:
            return "Invalid"
        return "Yes" if (thing.size > measure) == bigger else "No"


async def ask_oracle(ask: Ask, thing: Thing, question: str, turn: int) -> Answer:
    """The environment model's answer. It sees only the object and this question, so equal questions are equal requests.

    Raises:
        EnvironmentModelFailed: the request failed.
        EnvironmentModelUnreadable: the answer is neither Yes, No nor Invalid.
    """
    said = await ask(oracle_messages(thing, question), request_key=str(turn), regex=ANSWER_REGEX)
    first = said.strip(" \t\n.*\"'").split(maxsplit=1)[:1]
    answer = ANSWERS.get(first[0].strip(".,;:!*\"'").casefold()) if first else None
    if answer is None:
        raise EnvironmentModelUnreadable(
            f"the oracle wrote {said[:80]!r}, which is none of Yes, No and Invalid; set environment.model.structured "
            "to true, or use another model"
        )
    return answer


def oracle_messages(thing: Thing, question: str) -> tuple[Message, ...]:
    """The oracle's prompt."""
    kinds = f" Kind: {', '.join(thing.categories)}." if thing.categories else ""
    meaning = f" Meaning: {thing.definition}." if thing.definition else ""
    return (
        Message(
            role="system",
            content="You know a secret object, and a player tries to find it by questions. Answer each question about "
            "the object truthfully, by what holds for it usually, with one word: Yes or No. Answer Invalid if it is no "
            "question that yes or no can answer, or if it asks for more than one thing.\n"
            f"The object: {thing.title}.{kinds}{meaning}",
        ),
        Message(role="user", content=question),
    )
