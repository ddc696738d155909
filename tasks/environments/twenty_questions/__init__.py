"""20 Questions: find an object by yes-or-no questions (one of the paper's three tasks).

`things` reads the objects, `names` decides whether a guess names one, `questions` and `vocabulary` parse questions,
`oracles` answer them, and `validation` checks all of it without a model.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from schemas.load import find_file
from schemas.rows import Split
from tasks.environments.base import ActionFormat, Ask, Step, Task
from tasks.environments.twenty_questions.oracles import Answer, Facts, ask_oracle
from tasks.environments.twenty_questions.questions import Question, read_question
from tasks.environments.twenty_questions.things import SHIPPED, Thing, load_things
from tasks.environments.twenty_questions.validation import faults
from tasks.environments.twenty_questions.vocabulary import FILES, vocabulary

TURNS = 20
BEGINNINGS = "Is|Are|Does|Do|Can|Could|Would|Will|Might|May|Has|Have|Was|Were|Did|Should"
QUESTION = rf"(?:{BEGINNINGS}) [^\n?]{{2,100}}\?"
GAMES: dict[Split, int] = {"train": 1000, "eval": 500}

_RULES = (
    "You play Twenty Questions. I think of an object, and you find out which one. In each turn you ask one question "
    f"that can be answered with yes or no; I answer Yes, No or Invalid. You have {TURNS} questions, and naming the "
    "object is a question too: you win when you ask for it by its full name, for example 'Is it a hot dog?'."
)
_PLAIN = (
    " Ask about one property at a time and in plain words: 'Is it an animal?', 'Does it have wheels?', 'Is it made of "
    "wood?', 'Can you eat it?', 'Is it used for cutting?', 'Do you find it in a kitchen?', 'Is it bigger than a car?'."
)


class TwentyQuestions:
    """One game: a secret object. The 20th question ends it as done; a win is reward 1 and success.

    Train and eval have different objects, split by `seed`: 1,000 and 500 with 1,500 objects or more, as in the paper;
    from fewer objects one third is held out. A task's seed selects its object.

    Args:
        oracle: who answers: model (the one of `environment.model`) or facts (the table of facts, without a model).
        objects: a table of objects (see `things.load_things`); by default the shipped one.
        seed: of the split.

    Raises:
        ValueError: the table can't be used, or has no facts to answer from.
    """

    name = "twenty_questions"
    action_format = ActionFormat(
        QUESTION,
        "a yes-or-no question that begins with Is, Does, Can or the like, for example: Is it an animal?",
    )
    templates: Mapping[str, Path] = {}
    markov = False

    def __init__(
        self, oracle: Literal["model", "facts"] = "model", objects: str | None = None, seed: int = 0
    ) -> None:
        if oracle not in ("model", "facts"):
            raise ValueError(f"oracle: {oracle!r} is neither model nor facts")
        path = SHIPPED if objects is None else find_file(objects)
        self.things = load_things(path)
        self.files = {"objects": path, **FILES}
        self._facts: Facts | None = None
        if oracle == "facts":
            unknown = [thing.title for thing in self.things if thing.facts is None]
            if unknown:
                raise ValueError(
                    f"oracle: {path} has no facts (of {unknown[0]}, ...); add a column facts, or set oracle to model"
                )
            self._facts = Facts(self.things, vocabulary())
            # Structured output is limited to questions that the table can answer.
            form = replace(
                self.action_format, regex=self._facts.questions(), reads=QUESTION, sample=self._name
            )
            self.action_format = form
        # A model may answer the same question differently the second time.
        self.replayable = self._facts is not None
        self.needs_model = self._facts is None
        self.instructions = _RULES + (_PLAIN if self._facts else "")
        self._dealt = deal(self.things, seed)
        self._ask: Ask | None = None

    def connect(self, ask: Ask) -> None:
        """Let the environment model answer."""
        self._ask = ask

    def tasks(self, split: Split) -> Sequence[Task]:
        dealt = self._dealt.get(split, ())  # none are dealt for validation
        return [Task(f"twenty_questions/{split}/{n:04d}", split, n) for n in range(len(dealt))]

    def thing(self, task: Task) -> Thing:
        """The secret object of a task."""
        pool = self._dealt[task.split]
        return pool[task.seed % len(pool)]

    async def reset(self, task: Task) -> str:
        self._thing, self._turn = self.thing(task), 0
        return f"I am thinking of an object. You have {TURNS} questions."

    async def step(self, action: str) -> Step:
        self._turn += 1
        question = read_question(action)
        well_formed = re.fullmatch(QUESTION, action) is not None
        if well_formed and names(question, self._thing):
            return Step(f"Yes, it is: {self._thing.title}. You win.", reward=1.0, done=True, success=True)
        answer = await self._answer(action, question) if well_formed else "Invalid"
        left = TURNS - self._turn
        if not left:
            told = f"{answer}. That was your last question: it was {self._thing.title}. You lose."
            return Step(told, done=True, valid=answer != "Invalid")
        return Step(f"{answer}. Questions left: {left}.", valid=answer != "Invalid")

    async def _answer(self, text: str, question: Question) -> Answer:
        if self._facts is not None:
            return self._facts.answer(self._thing, question)
        if self._ask is None:
            raise RuntimeError("twenty_questions: with oracle model, call connect(ask) before the first game")
        return await ask_oracle(self._ask, self._thing, text, self._turn)

    def _name(self, stream: random.Random) -> str:
        """A random guess, for the random baseline."""
        return f"Is it a {stream.choice(self.things).title}?"

    def validate(self) -> list[str]:
        """Check names, and facts if the table has them; asks no model."""
        return faults(self.things, vocabulary())


def names(question: Question, thing: Thing) -> bool:
    """Whether a question names the object: its full name or a synonym. 'Is it orange?' asks about the colour."""
    if question.named is None or not thing.wins(question.named):
        return False
    return question.has_article or vocabulary().fact("is", question.named) is None


def deal(things: Sequence[Thing], seed: int) -> dict[Split, list[Thing]]:
    """The objects of the train and of the eval games, all different, in an order that `seed` determines."""
    order = random.Random(seed).sample(range(len(things)), len(things))
    held_out = min(GAMES["eval"], max(1, len(things) // 3))
    train = order[held_out : held_out + GAMES["train"]]
    return {"train": [things[n] for n in train], "eval": [things[n] for n in order[:held_out]]}
