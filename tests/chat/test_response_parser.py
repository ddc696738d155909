"""Calls of tools as the families write them."""

import pytest

from tasks.chat.response_parser import BrokenCall, Call, read_calls, split_reasoning

LOOK, MOVE = Call("look", {"far": 3}), Call("move", {})


@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        ('Dark.\n<tool_call>\n{"name": "look", "arguments": {"far": 3}}\n</tool_call>', "Dark.", (LOOK,)),
        (
            '<tool_call>{"name": "look", "arguments": {"far": 3}}</tool_call>\n<tool_call>{"name": "move"}</tool_call>',
            "",
            (LOOK, MOVE),
        ),
        ('<tool_call>\n{"name": "look", "arguments": {"far": 3}}', "", (LOOK,)),  # ended by the turn
        ('[TOOL_CALLS][{"name": "look", "arguments": {"far": 3}, "id": "a1b2c3d4e"}]', "", (LOOK,)),
        ('Dark.[TOOL_CALLS]look[CALL_ID]a1b2c3d4e[ARGS]{"far": 3}', "Dark.", (LOOK,)),
        ('[TOOL_CALLS]look[ARGS]{"far": 3}[TOOL_CALLS]move[ARGS]{}', "", (LOOK, MOVE)),
        ('{"name": "look", "parameters": {"far": 3}}', "", (LOOK,)),
        ('<|python_tag|>{"name": "look", "parameters": {"far": 3}}; {"name": "move"}', "", (LOOK, MOVE)),
        ("<|python_tag|>look.call(far=3)", "", (LOOK,)),
        ("<|python_tag|>look(far=3)", "", (LOOK,)),
        ('<tool_call>{"name": "look", "arguments": "{\\"far\\": 3}"}</tool_call>', "", (LOOK,)),
        ("It is dark.", "It is dark.", ()),
        ('{"name": "Ada"}', '{"name": "Ada"}', ()),  # an answer in JSON
        ('{"parameters": 3}', '{"parameters": 3}', ()),
    ],
)
def test_calls_are_read_whichever_family_wrote_them(text: str, words: str, calls: tuple[Call, ...]) -> None:
    assert read_calls(text) == (words, calls)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<tool_call>{"name": "look", </tool_call>', "no JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "needs a name"),
        ('<tool_call>{"name": "look", "arguments": [3]}</tool_call>', "no object"),
        ("[TOOL_CALLS][ARGS]{}", "no name"),
        ("<|python_tag|>print(1", "no call of a tool"),
        ("<|python_tag|>look(3)", "named arguments"),
        ("<|python_tag|>3 + 4", "named arguments"),
    ],
)
def test_a_call_that_cannot_be_read_is_said_to_be_broken(text: str, fault: str) -> None:
    with pytest.raises(BrokenCall, match=fault):
        read_calls(text)


def test_both_kinds_of_marks_part_a_thought_from_its_answer() -> None:
    assert split_reasoning("[THINK]hm[/THINK]yes") == ("hm", "yes")
    assert split_reasoning("<think>hm</think>\n\nyes") == ("hm", "yes")
