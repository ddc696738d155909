"""Every parser of what a model wrote, as a function of a text and the text before it, with what it may raise."""

from collections.abc import Callable
from types import ModuleType

from storage.history import State, Turn
from tasks.chat.response_parser import BrokenCall, read_calls, split_reasoning
from tasks.environments.frozen_lake import text as lake
from tasks.environments.guess_number import left_by_hints, possible_share
from tasks.environments.line_walk import text as line
from tasks.environments.logged import FORMAT, action_text, is_action
from tasks.environments.miniwob.actions import LegalActions
from tasks.environments.tau_bench.calls import Calls, Unreadable
from tasks.export.view.marks import mark_leaks
from tasks.foreign_json import BadJson, read_json
from tasks.prompting import native_calls
from tasks.text.action_format import ActionFormat
from tasks.text.discounting import measure_discounting
from tasks.text.formats import (
    future_segments,
    label_thought,
    read_action,
    read_choice,
    read_future,
    read_rewrite,
    read_verdict,
    write_action,
)
from tasks.text.leaks import SOURCE_OF_TARGET, SOURCE_OF_THOUGHT, find_leaks
from tasks.text.transcript import read_transcript, write_transcript

TOOL = {
    "type": "function",
    "function": {
        "name": "cancel",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "string"}, "share": {"type": "number"}},
            "required": ["order", "share"],
        },
    },
}
NUMBER = ActionFormat(r"\[(?:[1-9]|1[0-9]|20)\]", "a number")


def _transcript(text: str) -> None:
    played = read_transcript(text)
    if played is not None:
        write_transcript(played)


def _leaks(text: str, before: str) -> None:
    source = SOURCE_OF_THOUGHT if len(text) % 2 else SOURCE_OF_TARGET
    found = find_leaks(
        text[:400], privileged=[before[:400]], visible=["the hint says higher. Yes."], source=source
    )
    assert 0.0 <= found.share <= 1.0
    assert "".join(piece for piece, _ in mark_leaks(text[:400], found.passages)) == text[:400]


def _words(text: str) -> None:
    future = read_future(text)
    written = future_segments(future.thought, future.description)
    again = read_future("".join(written))
    assert again.malformed or again.description, "what is written reads back"
    label_thought(future.thought, 40)
    read_rewrite(text)
    read_rewrite(text, lines=True)
    read_verdict(text)
    read_choice(text, 3)


def _actions(text: str) -> None:
    for form in (NUMBER, FORMAT):
        found = read_action(text, form)
        assert found.action in text
        written = write_action(found.thought, found.action, 200)
        assert not found.valid or read_action(written, form).valid
    for hint in ("higher", "lower", "odd"):
        left_by_hints(_acted(text, f"The target number is {hint}"), NUMBER)
    possible_share({"t": State((), "Guess.")}, [("t", text)], NUMBER)


def _acted(text: str, seen: str) -> State:
    """A state after this text as the only turn."""
    return State((Turn("Guess.", text),), seen)


def _native(text: str) -> None:
    for action in (text, native_calls.action_text(text)):
        assert len(list(native_calls.native_chat(_acted(action, "lower"), NUMBER))) == 3


def _logged(text: str) -> None:
    is_action(text)
    assert action_text(text, []), "imported words are an action"
    action_text(text, [("look", text)])


REACT, NATIVE = Calls([TOOL], "react"), Calls([TOOL], "native")


def _tau(text: str, calls: Calls) -> None:
    calls.fault(calls.read(text))


WEB = """Task: Choose "Red", then write 7.
1 textbox "Name" = ""
2 button "Send" disabled
3 select "Colour" of "Red" "Blue"
4 textarea scrolls-up scrolls-down"""


def _web(text: str, before: str) -> None:
    allowed = LegalActions(WEB)
    assert all(action in allowed for action in allowed) and allowed[:1] == [allowed[0]]
    for action in (
        text,
        f"type 1 {text}",
        f"click {text}",
        f"select 3 {text}",
        f"scroll 4 {text}",
        "type 2 x",
    ):
        assert action not in allowed or "\n" not in action
    list(LegalActions(f"{before}\n{text}"))


def _ways(text: str) -> None:
    for world in (lake, line):
        described = world.read_description(text)
        assert described is None or world.read_description(str(described)) == described
        read = world.read_future(text)
        assert read is None or 0.0 <= read.value(0.9) <= 1.0
        assert read is None or read.one_step_earlier()
        world.mean_value([text, "?"], 0.9)
    for place in ("+1", "goal"):
        line.after("<", place, line.read_future(text))
    lake.one_step_earlier("r0c0", lake.read_future(text))
    line.well_formed(text, "<")
    lake.well_formed(text)


def _seen(text: str, world: ModuleType) -> None:
    seen = world.read_observation(text)
    assert seen.legal is not None and seen.distance >= 0


PARSERS: dict[str, tuple[Callable[[str, str], object], tuple[type[Exception], ...]]] = {
    "hidden reasoning": (lambda text, _: split_reasoning(text), ()),
    "tool calls": (lambda text, _: read_calls(text), (BrokenCall,)),
    "native actions": (lambda text, _: _native(text), ()),
    "foreign JSON": (lambda text, _: read_json(text), (BadJson,)),
    "ReAct actions": (lambda text, _: _actions(text), ()),
    "futures, verdicts, rewrites, choices": (lambda text, _: _words(text), ()),
    "leaks": (_leaks, ()),
    "discounting": (
        lambda text, before: measure_discounting(
            text[:400], next_observation="no", reward=1.0, future=before[:400]
        ),
        (),
    ),
    "transcripts": (lambda text, _: _transcript(text), ()),
    "logged calls": (lambda text, _: _logged(text), ()),
    "tau-bench calls, react": (lambda text, _: _tau(text, REACT), (Unreadable,)),
    "tau-bench calls, native": (lambda text, _: _tau(text, NATIVE), ()),
    "actions on web pages": (_web, ()),
    "descriptions of lake and line": (lambda text, _: _ways(text), ()),
    "observations of the lake": (lambda text, _: _seen(text, lake), (ValueError,)),
    "observations of the line": (lambda text, _: _seen(text, line), (ValueError,)),
}
