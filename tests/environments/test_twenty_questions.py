"""20 Questions: who wins and when, what the facts answer, where the objects come from, and who is asked."""

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from schemas.config import Config, EnvironmentSection
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from tasks.chat.messages import Message
from tasks.environments import AbsentEnvironment, UnusableEnvironment, make_environment
from tasks.environments.base import EnvironmentModelUnreadable, Step, Task, asks_model, would_accept
from tasks.environments.twenty_questions import TwentyQuestions, names
from tasks.environments.twenty_questions.oracles import FORMS, Facts, oracle_messages
from tasks.environments.twenty_questions.questions import read_question
from tasks.environments.twenty_questions.things import Thing, load_things
from tasks.environments.twenty_questions.validation import faults
from tasks.environments.twenty_questions.vocabulary import vocabulary
from tasks.pipeline.checks import check_config

SHIPPED = {thing.title: thing for thing in load_things()}
DEFINITION = "Definition (from WordNet, Google, or Wikipedia)"


@pytest.fixture(scope="module")
def game() -> TwentyQuestions:
    return TwentyQuestions(oracle="facts")


def play(game: TwentyQuestions, task: Task, questions: Sequence[str]) -> list[Step]:
    async def steps() -> list[Step]:
        await game.reset(task)
        return [await game.step(question) for question in questions]

    return asyncio.run(steps())


def task_of(game: TwentyQuestions, title: str) -> Task:
    return next(t for s in ("train", "eval") for t in game.tasks(s) if game.thing(t).title == title)


def asked(text: str, title: str) -> str:
    thing, question = SHIPPED[title], read_question(text)
    return (
        "win"
        if names(question, thing)
        else Facts(tuple(SHIPPED.values()), vocabulary()).answer(thing, question)
    )


@pytest.mark.slow
def test_the_shipped_objects_can_all_be_won_and_asked_about(game: TwentyQuestions) -> None:
    assert len(game.things) >= 150
    assert game.validate() == []
    for thing in game.things:
        assert thing.facts is not None and thing.size is not None and thing.definition
        assert ("natural" in thing.facts) != ("manmade" in thing.facts), thing.title
    for fact in vocabulary().phrases:
        assert 0 < sum(fact in (t.facts or ()) for t in game.things) < len(game.things), (
            f"{fact} tells nothing apart"
        )


@pytest.mark.parametrize(
    ("question", "title", "answer"),
    [
        ("Is it a hot dog?", "hot dog", "win"),
        ("Is it a dog?", "hot dog", "No"),  # never the last word alone
        ("Is it a hot?", "hot dog", "Yes"),  # nor the first: that asks whether it is hot
        ("Is it a hotdog?", "hot dog", "win"),
        ("Are they hot dogs?", "hot dog", "win"),
        ("So, could it be a wiener?", "hot dog", "win"),
        ("Is the object you are thinking of a Hot-Dog?", "hot dog", "win"),
        ("Is it a hot dog stand?", "hot dog", "Invalid"),
        ("Is it a kind of dog?", "dog", "Invalid"),
        ("Is it a bat?", "bat (animal)", "win"),
        ("Is it a bat?", "bat (sports)", "win"),
        ("Is it a bat (animal)?", "bat (animal)", "win"),
        ("Is it a bat (animal)?", "bat (sports)", "No"),
        ("Is it a baseball bat?", "bat (sports)", "win"),
        ("Is it a baseball bat?", "bat (animal)", "No"),
        ("Is it an orange?", "orange", "win"),
        ("Is it orange?", "orange", "Yes"),
        ("Is it orange?", "banana", "No"),
        ("Are they glasses?", "glasses", "win"),
        ("Is it a glass?", "glasses", "Yes"),  # in part made of it
    ],
)
def test_a_win_is_the_full_name_or_a_synonym(question: str, title: str, answer: str) -> None:
    assert asked(question, title) == answer


@pytest.mark.parametrize(
    ("question", "yes", "no"),
    [
        ("Is it an animal?", "bat (animal)", "bat (sports)"),
        ("Is it a type of fruit?", "tomato", "carrot"),
        ("Is it something you can eat?", "chicken", "hammer"),
        ("Can it fly?", "eagle", "penguin"),
        ("Does the object you are thinking of have four legs?", "chair", "duck"),
        ("Is it made out of metal?", "fork", "pillow"),
        ("Do people use it for cutting things?", "scissors", "spoon"),
        ("Can I cut with it?", "scissors", "spoon"),
        ("Would you usually find it in a kitchen?", "oven", "bed"),
        ("Is it something you would find in an office?", "pencil", "lion"),
        ("Is it bigger than a person?", "cow", "cat"),
        ("Is it smaller than a cow?", "cat", "whale"),
        ("Can you hold it in one hand?", "apple", "piano"),
        ("Is it man-made?", "cheese", "diamond"),
        ("Does it live in the ocean?", "shark", "frog"),
    ],
)
def test_the_facts_answer_yes_and_no(question: str, yes: str, no: str) -> None:
    assert (asked(question, yes), asked(question, no)) == ("Yes", "No")


@pytest.mark.parametrize(
    "question",
    [
        "What is it?", "Is it an animal or a plant?", "Is it a unicorn?", "Is it not alive?",
        "Is it bigger than a cat?", "I like dogs?",
    ],
)  # fmt: skip
def test_what_the_facts_can_not_tell_is_invalid(question: str) -> None:
    assert asked(question, "dog") == "Invalid"


def test_an_invalid_question_costs_a_turn_and_is_no_action_to_learn(game: TwentyQuestions) -> None:
    task = game.tasks("train")[0]
    first, second, third = play(game, task, ["Why?", "an animal, surely", "Is it alive?"])
    assert not first.valid and first.observation == "Invalid. Questions left: 19."
    assert not second.valid, "not even a question"
    assert third.valid and third.observation.endswith("Questions left: 17.")
    assert asyncio.run(would_accept(game, task, ["Why?"], "", "Is it alive?"))
    assert not asyncio.run(would_accept(game, task, [], "", "Is it colourless?"))


def test_the_twentieth_question_ends_the_game_as_done(game: TwentyQuestions) -> None:
    task = task_of(game, "hot dog")
    lost = play(game, task, ["Is it alive?"] * 20)
    assert [s.done for s in lost] == [False] * 19 + [True]
    assert not any(s.truncated or s.success for s in lost) and sum(s.reward for s in lost) == 0
    assert lost[-1].observation == "No. That was your last question: it was hot dog. You lose."
    won = play(game, task, ["Is it alive?"] * 19 + ["Is it a hot dog?"])[-1]
    assert (won.done, won.success, won.reward) == (True, True, 1.0)


def test_the_random_baseline_names_objects(game: TwentyQuestions) -> None:
    sample = game.action_format.sample
    assert sample is not None and TwentyQuestions().action_format.sample is None, (
        "a model is not asked for nothing"
    )
    said = [sample(random.Random(seed)) for seed in range(200)]
    assert all(re.fullmatch(game.action_format.regex, text) for text in said)
    assert all(any(names(read_question(text), thing) for thing in game.things) for text in said)


def test_structured_output_with_the_facts_is_held_to_questions_that_they_answer(
    game: TwentyQuestions,
) -> None:
    known = vocabulary()
    asked = [f"Is it a {name}?" for name in (*known.implied, *(thing.title for thing in game.things))]
    for frames in known.phrases.values():
        asked += [
            f"{form}{phrase}?" for frame, ways in frames.items() for form in FORMS[frame] for phrase in ways
        ]
    assert all(re.fullmatch(game.action_format.regex, text) for text in asked)
    secret = task_of(game, "hot dog")
    answers = {step.valid for text in set(asked) for step in play(game, secret, [text])}
    assert answers == {True}
    assert re.fullmatch(game.action_format.regex, "Could people eat it?") is None, (
        "not all that is understood"
    )
    assert re.fullmatch(game.action_format.regex, "Is an animal?") is None
    assert game.action_format.reads == TwentyQuestions().action_format.regex


def test_the_seed_picks_the_object_and_train_and_eval_share_none(game: TwentyQuestions) -> None:
    dealt = {split: [game.thing(task).title for task in game.tasks(split)] for split in ("train", "eval")}
    assert len(dealt["eval"]) == 77 and len(dealt["train"]) == 154 == len(set(dealt["train"]))
    assert not set(dealt["train"]) & set(dealt["eval"])
    again, other = (TwentyQuestions("facts", seed=seed) for seed in (0, 1))
    assert [again.thing(task).title for task in game.tasks("eval")] == dealt["eval"]
    assert [other.thing(task).title for task in game.tasks("eval")] != dealt["eval"]


def test_halving_what_is_left_finds_every_held_out_object(game: TwentyQuestions) -> None:
    forms = {
        "is": "Is it {}?", "does": "Does it {}?", "has": "Does it have {}?", "made": "Is it made of {}?",
        "used": "Is it used to {}?", "you": "Can you {}?", "in": "Is it found in {}?",
    }  # fmt: skip
    questions = {}
    for fact, frames in vocabulary().phrases.items():
        frame = next(iter(frames))
        questions[fact] = forms[frame].format(frames[frame][0])

    async def found(task: Task) -> bool:
        await game.reset(task)
        left = list(game.things)
        while True:
            counts = {fact: sum(fact in (t.facts or ()) for t in left) for fact in questions}
            fact = min(counts, key=lambda name: abs(2 * counts[name] - len(left)))
            halves = 0 < counts[fact] < len(left)
            outcome = await game.step(questions[fact] if halves else f"Is it a {left[0].title}?")
            if outcome.done:
                return outcome.success
            said = outcome.observation.startswith("Yes")
            left = [t for t in left if (fact in (t.facts or ())) == said] if halves else left[1:]

    assert all(asyncio.run(found(task)) for task in game.tasks("eval"))


def things_table() -> pl.DataFrame:
    """Six rows as the table of THINGS has them."""
    return pl.DataFrame(
        {
            "Word": ["hot dog", "bat", "bat", "air_conditioner", "blind", "blinds"],
            "uniqueID": ["hot_dog", "bat1", "bat2", "air_conditioner", "blind", "blinds"],
            "WordNet Synonyms": ["frank, hotdog, dog, wiener", "chiropteran", "club, bat", "", "screen", ""],
            DEFINITION: [
                "a sausage in a bun", "a flying mammal", "a club for hitting a ball", "it cools the air",
                "a hunter's shelter", "what darkens a window",
            ],
            "Bottom-up Category (Human Raters)": ["food", "animal", "sports equipment", None, None, None],
        }
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet"])
def test_the_table_of_things_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"things.{kind}"
    table = things_table()
    if kind == "parquet":
        table.write_parquet(path)
    else:
        table.write_csv(path, separator="\t" if kind == "tsv" else ",")
    dog, animal, club, cooler, blind, blinds = load_things(path)
    assert [t.title for t in (dog, animal, club)] == ["hot dog", "bat (animal)", "bat (sports equipment)"]
    assert dog.synonyms == ("frank", "wiener"), "a dog does not win a hot dog, whatever WordNet says"
    assert club.wins("club") and club.wins("bat") and not club.wins("bat (animal)")
    assert cooler.name == "air conditioner" and cooler.wins("an air-conditioner") and cooler.categories == ()
    assert animal.definition == "a flying mammal"
    assert (blind.title, blinds.title) == ("blind (blind)", "blinds (blinds)"), "told apart by their ids"
    assert faults(load_things(path), vocabulary()) == []
    assert len(TwentyQuestions(objects=str(path)).tasks("train")) == 4
    with pytest.raises(
        ValueError, match=r"oracle: .*has no facts \(of hot dog, \.\.\.\); add a column facts, or"
    ):
        TwentyQuestions(oracle="facts", objects=str(path))


def test_a_table_as_large_as_the_papers_gives_its_games(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    numbered = [f"object {number}" for number in range(1823)]
    blank = [""] * 1823
    pl.DataFrame({"name": numbered, "synonyms": blank, "category": blank, "definition": blank}).write_parquet(
        path
    )
    game = TwentyQuestions(objects=str(path))
    assert (len(game.tasks("train")), len(game.tasks("eval"))) == (1000, 500)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("name\tkind\nx\ty", "it needs name, synonyms, category, definition, or those of THINGS"),
        ("name\tsynonyms\tcategory\tdefinition\tfacts\na\t\tfruit\t\tred\nb\t\tfruit\t\tloud", "b: loud is"),
        ("name\tsynonyms\tcategory\tdefinition\nplum\t\t\t\nPlums\t\t\t", "has plum twice; distinguish homonyms"),
        ("name\tsynonyms\tcategory\tdefinition\tsize\na\t\t\t\t9\nb\t\t\t\t1", "size of a is '9'; use 0 to 5"),
        ("name\tsynonyms\tcategory\tdefinition\na\t\t\t", "fewer than two objects"),
        ("name\tsynonyms\tcategory\tdefinition\na\t\t\t\n \t\t\t", "a row without a name; add one"),
    ],
)  # fmt: skip
def test_a_broken_table_is_named_with_its_remedy(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "objects.tsv"
    path.write_text(rows)
    section = EnvironmentSection(name="twenty_questions", options={"objects": str(path)})
    with pytest.raises(UnusableEnvironment, match=said):
        make_environment(section)
    other = path.rename(tmp_path / "objects.json")
    with pytest.raises(ValueError, match=r"is not a \.tsv, \.csv or \.parquet file; convert it"):
        load_things(other)


def test_a_missing_table_and_an_unknown_oracle_are_named() -> None:
    for options, said in (
        ({"objects": "no/such.tsv"}, r"no/such\.tsv can't be read"),
        ({"oracle": "me"}, "'me'"),
    ):
        with pytest.raises(UnusableEnvironment, match=said):
            make_environment(EnvironmentSection(name="twenty_questions", options=options))
    with pytest.raises(AbsentEnvironment):  # it may be on the machine that the configuration is for
        make_environment(EnvironmentSection(name="twenty_questions", options={"objects": "no/such.tsv"}))


def test_validation_finds_names_that_win_too_easily_and_twins() -> None:
    def thing(name: str, *synonyms: str) -> Thing:
        return Thing(name, None, synonyms, ("fruit",), "", size=1, facts=frozenset({"red"}))

    found = "\n".join(faults((thing("hot dog", "dog"), thing("dog")), vocabulary()))
    assert "hot dog: its synonym dog is only the end of its name; remove it" in found
    assert "hot dog: asking for a dog, another object, wins" in found
    assert "nothing distinguishes hot dog from dog" in found


def test_a_model_is_asked_about_the_object_and_one_question_alone() -> None:
    game = TwentyQuestions()
    assert asks_model(game) and not game.replayable
    task = task_of(game, "bat (animal)")
    requests: list[tuple[tuple[Message, ...], str, str | None]] = []

    async def ask(messages: tuple[Message, ...], *, request_key: str, regex: str | None = None) -> str:
        requests.append((messages, request_key, regex))
        return "No." if len(requests) == 1 else "I would not say"

    game.connect(ask)
    with pytest.raises(
        EnvironmentModelUnreadable,
        match="the oracle wrote 'I would not say', which is none of Yes, No and Invalid",
    ):
        play(game, task, ["Is it a plane?", "no question", "Is it a bird?"])
    assert [item for _, item, _ in requests] == ["1", "3"], "what is no question is not passed on"
    messages, _, regex = requests[0]
    assert (
        messages == oracle_messages(SHIPPED["bat (animal)"], "Is it a plane?") and regex == "Yes|No|Invalid"
    )
    assert "bat (animal)" in messages[0]["content"] and "hangs upside down" in messages[0]["content"]
    assert play(game, task, ["Is it a bat?"])[0].success and len(requests) == 2, (
        "names are compared, not asked"
    )


def test_the_configuration_says_who_answers(tmp_path: Path) -> None:
    shipped = load_config(PROJECT_ROOT / "configs" / "examples" / "twenty_questions_smollm2.yaml")
    assert isinstance(make_environment(shipped.environment), TwentyQuestions)
    content = shipped.model_dump()
    content["engines"] = {"local": {"backend": "scripted", "rules": "tests.support.question_rules:player"}}
    for options, model, said in (
        ({}, None, r"environment\.model: twenty_questions needs an environment model and none is configured"),
        (
            {"oracle": "facts"},
            {"engine": "local"},
            r"environment\.model: twenty_questions needs no environment model",
        ),
    ):
        content["environment"] |= {"options": options, "model": model}
        with pytest.raises(ConfigError, match=said):
            check_config(Config.model_validate(content), tmp_path / "data")


def test_validation_finds_words_that_mean_two_things() -> None:
    other = Thing("plum", None, (), ("fruit",), "", size=2, facts=frozenset({"red"}))
    known = vocabulary()
    key, facts = next(iter(known.facts.items()))
    doubled = replace(known, facts={**known.facts, key: (*facts, "wings")})
    found = "\n".join(faults((other,), doubled))
    assert re.search("facts: '.*' may mean .* or wings; leave one of them", found)


def test_an_unknown_kind_has_no_parents() -> None:
    with pytest.raises(KeyError, match="starship"):
        list(vocabulary().with_parents(["starship"]))


def test_an_oracle_that_was_not_connected_says_so() -> None:
    game = TwentyQuestions(oracle="model")
    with pytest.raises(RuntimeError, match=r"call connect\(ask\) before the first game"):
        play(game, game.tasks("eval")[0], ["Is it alive?"])
