"""One grammar a role: every label that can be written is sampled under it, and reads back as what it was made from."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tasks.text.action_format import ActionFormat
from tasks.text.formats import (
    action_regex,
    future_regex,
    future_segments,
    label_thought,
    one_line,
    read_action,
    read_future,
    read_verdict,
    verdict_regex,
    write_action,
    write_verdict,
)

FORMS = (
    ActionFormat(r"\[(?:[1-9]|1[0-9]|20)\]", "a number"),
    ActionFormat("left|right", "left or right"),
    ActionFormat(r"[^\s\n][^\n]{0,30}[^\s\n]", "free text"),
)
CHARS = st.integers(1, 60)
WORDS = st.sampled_from(
    ["Action:", "Future:", "Thought:", "Reason:", "\n", "\n\n ", " ", "\r", "a", "or so", "ü"]
)
TEXTS = st.text(max_size=80) | st.lists(WORDS, max_size=12).map("".join)
actions = st.sampled_from(FORMS).flatmap(
    lambda form: st.tuples(st.just(form), st.from_regex(form.regex, fullmatch=True))
)


@given(actions, TEXTS, CHARS)
def test_labels_of_policy_and_refiner_are_in_their_grammar(
    acted: tuple[ActionFormat, str], thought: str, chars: int
) -> None:
    form, action = acted
    text = write_action(thought, action, chars)
    assert re.fullmatch(action_regex(form, chars), text)
    found = read_action(text, form)
    assert (found.thought, found.action, found.valid) == (label_thought(thought, chars), action.strip(), True)


@given(TEXTS, TEXTS, CHARS)
def test_labels_of_successor_and_backup_are_in_their_grammar(
    thought: str, description: str, chars: int
) -> None:
    shown, told = label_thought(thought, chars), one_line(description)[:chars].strip()
    if not told:
        return  # no future, so no label (a row with a status)
    text = "".join(future_segments(shown, told))
    assert re.fullmatch(future_regex(chars), text)
    found = read_future(text)
    assert (found.thought, found.description, found.malformed) == (shown, told, False)


@given(st.booleans(), TEXTS, CHARS)
def test_labels_of_the_evaluator_are_in_their_grammar(optimal: bool, reason: str, chars: int) -> None:
    told = one_line(reason)[:chars].strip()
    if not told:
        return  # the reason is no option
    text = write_verdict(optimal, told)
    assert re.fullmatch(verdict_regex(chars), text)
    found = read_verdict(text)
    assert (found.optimal, found.reason) == (optimal, told)


@given(TEXTS, TEXTS)
def test_a_label_has_two_lines_whatever_was_written(thought: str, description: str) -> None:
    text = "".join(future_segments(thought, description))
    assert text.count("\n") == bool(one_line(thought))


def test_a_label_without_a_thought_may_be_sampled() -> None:
    assert re.fullmatch(action_regex(FORMS[0], 9), "Action: [3]")
    assert re.fullmatch(future_regex(9), "Future: it ends")


def test_a_thought_that_fills_its_line_is_no_label() -> None:
    assert write_action("x" * 9, "[3]", 10) == f"Thought: {'x' * 9}\nAction: [3]"
    assert write_action("x" * 10, "[3]", 10) == "Action: [3]"
    assert write_action("one\n two", "[3]") == "Thought: one two\nAction: [3]"
