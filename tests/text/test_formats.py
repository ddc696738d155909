"""Reading and writing the roles' texts."""

import re

import pytest

from tasks.text.action_format import ActionFormat
from tasks.text.formats import (
    Action,
    Verdict,
    action_regex,
    future_regex,
    future_segments,
    read_action,
    read_choice,
    read_future,
    read_rewrite,
    read_verdict,
    verdict_regex,
    verdict_segments,
    write_action,
    write_verdict,
)

NUMBER = ActionFormat(r"\[(?:[1-9]|1[0-9]|20)\]", "a number")


def test_an_action_is_read_as_it_is_written() -> None:
    text = write_action("half of it", "[10]")
    assert re.fullmatch(action_regex(NUMBER, 20), text)
    assert read_action(text, NUMBER) == Action("half of it", "[10]", valid=True)
    assert read_action(write_action("", "[10]"), NUMBER) == Action("", "[10]", valid=True)


@pytest.mark.parametrize(
    "text", ["[10]", "Thought: x", "Thought: x\nAction: ten", "Action: [21]", "", "Action: [3] or [4]"]
)
def test_an_action_without_its_format_is_not_valid_and_nothing_is_made_up(text: str) -> None:
    found = read_action(text, NUMBER)
    assert not found.valid
    assert found.action in text


def test_a_thought_may_speak_of_an_action() -> None:
    text = "Thought: I could say Action: [3], but\nAction: [4]"
    assert read_action(text, NUMBER) == Action("I could say Action: [3], but", "[4]", valid=True)
    assert read_action("Thought: on one line Action: [4]", NUMBER) == Action("on one line", "[4]", valid=True)
    future = read_future("Thought: no Future: x\nFuture: y")
    assert (future.thought, future.description) == ("no Future: x", "y")


def test_a_future_without_its_format_is_marked() -> None:
    assert read_future("Thought: a\nFuture: b c").description == "b c"
    whole = read_future("it will go well")
    assert (whole.thought, whole.description, whole.malformed) == ("", "it will go well", True)
    assert read_future("Thought: a\nFuture:").malformed


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("1", 0),
        (" 3.\n", 2),
        ("0", None),
        ("4", None),
        ("", None),
        ("two", None),
        ("9" * 4301, None),
        ("²", None),
    ],
    ids=lambda given: given[:5] if isinstance(given, str) else "",
)
def test_a_choice_is_one_of_the_places_or_none(text: str, index: int | None) -> None:
    assert read_choice(text, 3) == index


def test_the_label_reads_back_as_what_it_was_made_from() -> None:
    before, description = future_segments("because", "it ends well")
    found = read_future(before + description)
    assert (found.thought, found.description, found.malformed) == ("because", "it ends well", False)
    assert read_future("".join(future_segments("", "x"))).thought == ""


@pytest.mark.parametrize(
    ("text", "optimal"),
    [
        ("Optimal: yes\nReason: it wins", True),
        ("Optimal: No\nReason: it loses", False),
        ("Optimal: yes", True),
        ("Reason: it wins\nOptimal: yes", True),
        ("Reason: not\nOptimal: yes, but\nOptimal: no.", False),
        ("Reason: it wins", None),
        ("Reason: Optimal: yes", None),
        ("it was fine", None),
        ("Optimal: yesterday", None),
        ("", None),
    ],
)
def test_a_verdict_is_yes_or_no_or_unreadable(text: str, optimal: bool | None) -> None:
    assert read_verdict(text).optimal is optimal


def test_the_verdict_format_is_readable() -> None:
    text = "Optimal: no\nReason: guess lower"
    assert re.fullmatch(verdict_regex(20), text)
    assert read_verdict(text).reason == "guess lower"
    assert re.fullmatch(verdict_regex(20, False), text) and not re.fullmatch(verdict_regex(20, True), text)
    for first in (False, True):
        written = write_verdict(False, "guess lower", reason_first=first)
        assert read_verdict(written) == Verdict(False, "guess lower")
        assert written.startswith("Reason:") is first
    assert "".join(verdict_segments(False, "guess lower")) == written
    assert text.startswith("".join(verdict_segments(False)))


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("Perhaps it is lower.", "Perhaps it is lower."),
        ('Thought: "if it is lower, seven fits"\nand more', "if it is lower, seven fits"),
        ("The thought:", ""),
        ("The rewritten thought: maybe", "maybe"),
        ("", ""),
    ],
)
def test_a_rewrite_is_its_first_line_without_a_label(text: str, thought: str) -> None:
    assert read_rewrite(text) == thought


def test_structured_lines_are_as_long_as_configured_and_no_longer() -> None:
    for chars in (5, 400):
        fits, too_long = "x" * chars, "x" * (chars + 1)
        assert re.fullmatch(action_regex(NUMBER, chars), f"Thought: {fits}\nAction: [1]")
        assert not re.fullmatch(action_regex(NUMBER, chars), f"Thought: {too_long}\nAction: [1]")
        assert re.fullmatch(future_regex(chars), f"Thought: {fits}\nFuture: {fits}")
        assert not re.fullmatch(future_regex(chars), f"Thought: {fits}\nFuture: {too_long}")
        assert not re.fullmatch(verdict_regex(chars), f"Optimal: no\nReason: {too_long}")


def test_an_action_of_several_forms_has_its_thought_before_each_of_them() -> None:
    either = action_regex(ActionFormat("left|right", "left or right"), 20)
    assert re.fullmatch(either, "Thought: hm\nAction: right") and re.fullmatch(
        either, "Thought: hm\nAction: left"
    )
    assert not re.fullmatch(either, "right")
