"""What is left out of a prompt that does not fit: the oldest exchanges, then the middle of long texts; counted."""

from collections.abc import Mapping
from typing import Any

import pytest

from schemas.config import EngineSection
from storage.history import State, Turn, without_middle
from tasks.chat.messages import Message
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.prompting.truncation import NOTHING, Dropped, Window, fit
from tests.support.tiny import make_tiny_checkpoint

STATE = State((Turn("task", "a0"), Turn("o1", "a1"), Turn("o2", "a2")), "now")


def render(variables: Mapping[str, Any]) -> tuple[Message, ...]:
    state: State = variables["state"]
    shown = [text for turn in state.turns for text in (turn.observation, turn.text)]
    return (Message(role="user", content="|".join([*shown, state.observation, *variables.get("more", ())])),)


def at_most(chars: int) -> Any:
    return lambda messages: len(messages[0]["content"]) <= chars


def test_the_oldest_exchanges_go_and_the_task_stays() -> None:
    note = "[{} of the oldest exchanges left out here]"
    assert STATE.without_oldest(0) == STATE
    assert STATE.without_oldest(1) == State(
        (Turn(f"task\n\n{note.format(1)}", "a1"), Turn("o2", "a2")), "now"
    )
    assert STATE.without_oldest(3) == State((), f"task\n\n{note.format(3)}\n\nnow")
    assert [STATE.chars_of_oldest(count) for count in range(4)] == [0, 4, 8, 10]
    with pytest.raises(ValueError, match="4 exchanges of 3"):
        STATE.without_oldest(4)


def test_a_prompt_that_fits_is_left_as_it_is() -> None:
    assert fit({"state": STATE}, render, at_most(100)).dropped == NOTHING


def test_as_few_exchanges_go_as_will_do() -> None:
    long = State(tuple(Turn(f"observation {n}" * 20, f"action {n}") for n in range(10)), "now")
    sizes = [len(render({"state": long.without_oldest(count)})[0]["content"]) for count in range(11)]
    for count in range(2, 10):
        prompt = fit({"state": long}, render, at_most(sizes[count]))
        assert prompt.dropped == Dropped(count, long.chars_of_oldest(count))
        assert prompt.messages == render({"state": long.without_oldest(count)})


def test_then_the_longest_texts_lose_their_middle_as_little_as_will_do() -> None:
    state = State((Turn("t" * 300, "a"),), "n" * 1000)
    prompt = fit({"state": state, "more": ["f" * 900, "short"]}, render, at_most(1500))
    text = prompt.messages[0]["content"]
    assert 1350 < len(text) <= 1500
    assert text.startswith("t" * 300) and text.endswith("f" * 50 + "|short")
    assert text.count("characters left out here]") == 2 and "1 of the oldest" in text
    lost = 300 + 1000 + 900 - sum(text.count(letter * 10) * 10 for letter in "tnf")
    assert prompt.dropped.turns == 1 and abs(prompt.dropped.chars - lost) < 80


def test_a_template_that_shows_no_history_loses_none() -> None:
    def last(variables: Mapping[str, Any]) -> tuple[Message, ...]:
        return (Message(role="user", content=variables["state"].observation),)

    state = State(STATE.turns, "n" * 500)
    prompt = fit({"state": state}, last, at_most(400))
    assert prompt.dropped.turns == 0 and prompt.dropped.chars > 100
    assert "exchanges" not in prompt.messages[0]["content"]


def test_what_can_not_fit_is_still_a_prompt() -> None:
    prompt = fit({"state": STATE}, render, at_most(0))
    assert prompt.messages and prompt.dropped.turns == 3


def test_the_middle_of_a_text_goes() -> None:
    assert without_middle("abcdefgh", 8) == "abcdefgh"
    assert without_middle("abcdefgh", 5) == "abc\n[3 characters left out here]\ngh"


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return load_chat_tokenizer(make_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


def test_the_window_holds_prompt_and_completion_to_the_token(chat: ChatTokenizer) -> None:
    messages = (Message(role="user", content="x" * 500),)
    length = len(chat.prompt_ids(messages))
    assert Window(length + 20, lambda: chat).holds(messages, 20)
    assert not Window(length + 19, lambda: chat).holds(messages, 20)
    label = ("y" * 30, "z" * 10)  # 40 bytes, each a token, and the end of turn
    assert Window(length + 41, lambda: chat).holds(messages, 20, label)
    assert not Window(length + 40, lambda: chat).holds(messages, 20, label)


def test_short_prompts_are_not_tokenised() -> None:
    def never() -> ChatTokenizer:
        raise AssertionError("asked for the tokenizer")

    assert Window(2048, never).holds((Message(role="user", content="x" * 1500),), 100)


def test_an_engine_with_a_model_of_its_own_has_a_window_of_its_own() -> None:
    assert (
        EngineSection(
            backend="openai", base_url="http://x/v1", model="judge", context_length=99
        ).context_length
        == 99
    )
    with pytest.raises(ValueError, match=r"set model\.context_length"):
        EngineSection(context_length=99)
