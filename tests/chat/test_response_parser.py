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
        ('<|python_tag|>look(far=b"3")', "no call of a tool"),
        ("<|python_tag|>look(far={3, 4})", "no call of a tool"),
        ("<|python_tag|>look(far=1e999)", "no call of a tool"),
        (f"<|python_tag|>look(far={'-' * 5000}3)", "no call of a tool"),
        (f"<|python_tag|>look(far={'[' * 1000})", "no call of a tool"),
        (f"<|python_tag|>look(far={'9' * 4301})", "no call of a tool"),
        ("<|python_tag|>look(far=\0)", "no call of a tool"),
        (f'<|python_tag|>look(far=f"{"{x}" * 100}")', "no call of a tool"),
        (f'<|python_tag|>look(far=f"{"{x}" * 100_000}")', "longer than"),  # Python parses it in 17 seconds
        (f'<tool_call>{{"name": "look", "arguments": {"[" * 1000}', "levels deep"),
        (
            f'<tool_call>{{"name": "look", "arguments": {{"far": {"9" * 4301}}}}}</tool_call>',
            "too many digits",
        ),
        (f"[TOOL_CALLS]look[ARGS]{'[' * 100_000}", "levels deep"),
        (f'<|python_tag|>{{"name": "look", "parameters": {"[" * 100_000}', "levels deep"),
    ],
)
def test_a_call_that_cannot_be_read_is_said_to_be_broken(text: str, fault: str) -> None:
    with pytest.raises(BrokenCall, match=fault):
        read_calls(text)


def test_an_unmarked_object_that_is_nested_too_deep_is_an_answer() -> None:
    text = f'{{"name": "look", "arguments": {"[" * 1000}}}'
    assert read_calls(text) == (text, ())


def test_half_a_pair_of_surrogates_in_a_call_is_replaced() -> None:
    _, (call,) = read_calls('<tool_call>{"name": "look", "arguments": {"far": "\\ud83d"}}</tool_call>')
    assert call == Call("look", {"far": "\ufffd"})


def test_both_kinds_of_marks_part_a_thought_from_its_answer() -> None:
    assert split_reasoning("[THINK]hm[/THINK]yes") == ("hm", "yes")
    assert split_reasoning("<think>hm</think>\n\nyes") == ("hm", "yes")
