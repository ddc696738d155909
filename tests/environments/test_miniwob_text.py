"""MiniWoB++ without a browser: observations, the grammar of actions, and what is missing."""

import random
import re
from pathlib import Path

import pytest

from schemas.config import EnvironmentSection
from schemas.load import PROJECT_ROOT
from tasks.environments.registry import BUILTIN

pytest.importorskip("selenium", reason="needs selenium (pip install -e '.[miniwob]')")

from tasks.environments import AbsentEnvironment, UnusableEnvironment, make_environment
from tasks.environments.miniwob.actions import ACTION_FORMAT, KEYS, LegalActions, read_action
from tasks.environments.miniwob.observation import (
    LINES,
    OPTIONS,
    TEXT_CHARS,
    read_lines,
    read_task,
    write_observation,
)
from tasks.environments.miniwob.pages import PAGES
from tasks.environments.miniwob.solutions import SOLUTIONS

FORM = {
    "task": 'Enter "Bob" as the name, and choose Red.',
    "done": False,
    "reward": 0,
    "reason": None,
    "elements": [
        {"ref": 1, "role": "textbox", "text": "Name", "value": "Al", "flags": ["focused"]},
        {"ref": 2, "role": "textbox", "text": "", "value": "", "flags": ["readonly"]},
        {"ref": 3, "role": "select", "text": "", "value": "Isle of Man", "flags": [],
         "options": ["Red", "Isle of Man"]},
        {"ref": 4, "role": "button", "text": "OK disabled", "flags": []},
        {"ref": 5, "role": "button", "text": "Send", "flags": ["disabled"]},
        {"ref": 7, "role": "div", "text": "", "named": "box", "colour": "rgb(255, 0, 0)", "flags": ["scrolls-down"]},
        {"ref": 8, "role": "circle", "text": "", "named": "", "colour": "rgb(1, 2, 3)", "at": [4, 5], "flags": []},
    ],
}  # fmt: skip
SEEN = """Task: Enter "Bob" as the name, and choose Red.
Done: click 4
1 textbox "Name" = "Al" focused
2 textbox = "" readonly
3 select = "Isle of Man" of "Red" "Isle of Man"
4 button "OK disabled"
5 button "Send" disabled
7 div .box red scrolls-down
8 circle #010203 at 4,5"""


def test_a_page_is_a_line_for_each_element() -> None:
    assert write_observation(FORM, ["click 4"]) == SEEN
    assert read_task(SEEN) == FORM["task"]
    lines = {line.ref: line for line in read_lines(SEEN)}
    assert list(lines) == [1, 2, 3, 4, 5, 7, 8]
    assert (lines[1].text, lines[1].value) == ("Name", "Al")
    assert lines[3].options == ("Red", "Isle of Man")
    assert lines[4].enabled and not lines[5].enabled, "what a button says is no flag"


def test_legal_actions_follow_from_the_observation() -> None:
    legal = LegalActions(SEEN)
    assert list(legal) == [
        "click 1", "type 1 Bob", "click 2", "click 3", "select 3 Red", "select 3 Isle of Man", "click 4", "click 7",
        "scroll 7 down", "click 8", "press Enter",
    ]  # fmt: skip
    assert "type 1 any other text" in legal and "press ArrowUp" in legal
    for refused in (
        "click 5", "click 6", "click 9", "type 2 Bob", "type 4 Bob", "select 3 Blue", "scroll 7 up", "scroll 1 down",
        "press F5", "click", "click 1 ", "click 1\nclick 2", "", "type 1 ", "hover 1",
        "type 1 a\ue004b", "type 1 \ue009a", "type 1 \ud83d",  # keys of WebDriver, half a character
    ):  # fmt: skip
        assert refused not in legal, refused
    assert not list(LegalActions("The page is gone.")) and "press Enter" not in LegalActions(
        "The page is gone."
    )


def test_what_a_page_says_makes_no_element() -> None:
    page = FORM | {
        "task": '9 button "Win"',
        "elements": [{"ref": 1, "role": "p", "text": "2 link 'x' of 'y'", "flags": []}],
    }
    seen = write_observation(page, ['type 1 "\n3 button "Win"'])
    assert [line.ref for line in read_lines(seen)] == [1]


def test_long_texts_lists_and_pages_are_cut() -> None:
    long = {"ref": 1, "role": "textarea", "text": "", "value": "word " * 200 + "end", "flags": []}
    many = {
        "ref": 2,
        "role": "select",
        "text": "",
        "value": "",
        "flags": [],
        "options": [f"o{n}" for n in range(99)],
    }
    more = [{"ref": n, "role": "p", "text": "x", "flags": []} for n in range(3, 200)]
    seen = write_observation(FORM | {"elements": [long, many, *more]}, [])
    lines = list(read_lines(seen))
    assert len(lines) == LINES and seen.endswith("and 119 more elements")
    assert len(lines[0].value) < TEXT_CHARS + 10 and lines[0].value.endswith("word end")
    assert len(lines[1].options) == OPTIONS and "select 2 o98" in LegalActions(seen), "it may be in the rest"


def test_the_end_says_how_it_ended() -> None:
    over = write_observation(FORM | {"done": True, "reward": 1}, ["click 4"])
    assert over.splitlines()[1:] == ["Done: click 4", "The episode is over. Reward 1."]
    late = write_observation(FORM | {"done": True, "reward": -1, "reason": "timed out"}, [])
    assert late.endswith("The episode is over, the time is up. Reward -1.") and not LegalActions(late)


def test_every_listed_action_has_the_form_of_one() -> None:
    import re

    for action in (*LegalActions(SEEN), *(f"press {key}" for key in KEYS)):
        assert re.fullmatch(ACTION_FORMAT.regex, action) and read_action(action) is not None
    assert random.Random(0).choice(LegalActions(SEEN)) in LegalActions(SEEN)


def test_the_pages_list_what_is_checked_and_what_is_solved() -> None:
    page = (PROJECT_ROOT / "docs" / "environments" / "miniwob.md").read_text(encoding="utf-8")
    listed = page.partition("## Checked pages\n")[2].partition("\n\nEach opens")[0]
    assert set(re.findall(r"[a-z][a-z0-9-]+", listed)) == set(PAGES)
    assert set(re.findall(r"\*\*([a-z0-9-]+)\*\*", listed)) == set(SOLUTIONS)
    row = (PROJECT_ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    assert f"solutions of {len(SOLUTIONS)} pages" in row and f"episodes of all {len(PAGES)} are" in row


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("miniwob")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert BUILTIN["miniwob"].missing == (
        "needs chromium and chromedriver, not found on PATH; on Debian: apt-get install chromium chromium-driver"
    )
    with pytest.raises(AbsentEnvironment, match=r"environment\.name: miniwob needs chromium"):
        make_environment(EnvironmentSection(name="miniwob", options={}))


@pytest.mark.skipif(BUILTIN["miniwob"].missing is not None, reason=f"miniwob {BUILTIN['miniwob'].missing}")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pages": ["no-such-page"]}, "the package miniwob has no page 'no-such-page'"),
        ({"pages": ["../miniwob/click-test"]}, "has no page '../miniwob/click-test'"),
        ({"steps": 0}, "steps is 0; it must be 1 or more"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UnusableEnvironment, match=said):
        make_environment(EnvironmentSection(name="miniwob", options=options))
