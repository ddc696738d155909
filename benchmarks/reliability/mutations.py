"""Hostile completions: real and well-formed texts of models, mutated, and texts made to hurt a parser.

All follow from a seed. A text is as long as a model may write: LONGEST characters, a few of them ten times as many.
"""

import json
from collections.abc import Iterator
from random import Random

from benchmarks.reliability.completions import FILE

LONGEST = 1_500

WRITTEN = (
    "Thought: halves are quick\nAction: [10]",
    "Thought: I could say Action: [3], but\nAction: [4]",
    "Action: <<",
    "Action: Is it made of wood?",
    "Is it bigger than a car?",
    "Is it bigger than a zzz?",
    "Is it an animal?",
    "Is it something that has wings?",
    "Is it something that can fly?",
    "Is it something wooden?",
    "Are you thinking of a hot dog?",
    "Is it something that people can use to cut?",
    "Can it be something which has wings?",
    "Action: left",
    "Action: [up]",
    "Action: [A C]",
    "Action: [2 1 4 5]",
    "Action: \\frac{3}{4}",
    "Future: > +8, goal in 5",
    "Thought: it is near\nFuture: << pit",
    "to r1c2 then goal n6",
    "to r1c2 then unclear",
    "> +8, unclear",
    "hole now",
    "-3: < -4 << -5 > pit >> -1. pits -2 +2. ends -5 +3",
    "agent r0c1 goal r3c3 . H . / r1c1 r2c3 none none none none",
    "Environment: -1: < goal << +1 > -2 >> -3. pits -4 +2. ends -5 +3 Agent: < Environment: goal "
    "The task succeeded; reward 1.",
    "Environment: hole The task failed; reward 0.",
    "Environment: higher Agent: [7] The task failed; reward 0.",
    "[TOOL_CALLS][ARGS]{}",
    "Environment: agent r0c1 goal r3c3 . H . / r1c1 r2c3 none none none none Agent: right Environment: hole "
    "The episode was cut off before its end; reward 0.",
    "Optimal: yes\nReason: it halves the range",
    "Reason: it does not\nOptimal: no.",
    "The rewritten thought: perhaps it is lower.",
    "If a hint follows, the range narrows; he answers yes, because the next observation shows the target.",
    "<think>\nhm\n</think>\n\nThought: so\nAction: [3]",
    "[THINK]hm[/THINK]yes",
    'Dark.\n<tool_call>\n{"name": "respond", "arguments": {"content": "Hello"}}\n</tool_call>',
    '<tool_call>{"name": "cancel", "arguments": "{\\"order\\": \\"#W1\\"}"}</tool_call><tool_call>{"name": "look"}',
    '[TOOL_CALLS][{"name": "look", "arguments": {"far": 3}, "id": "a1b2c3d4e"}]',
    'Dark.[TOOL_CALLS]look[CALL_ID]a1b2c3d4e[ARGS]{"far": 3}[TOOL_CALLS]move[ARGS]{}',
    '{"name": "look", "parameters": {"far": 3}}; {"name": "move", "parameters": {}}',
    '<|python_tag|>{"name": "look", "parameters": {"far": 3}}; {"name": "move"}',
    '<|python_tag|>look.call(far=3, near="x", of=[1, {"a": None}])',
    '{"name": "cancel", "arguments": {"order": "#W1", "items": [{"n": 2, "how": "a-b"}], "share": 0.5}}',
    '{"function": {"name": "cancel", "arguments": "{\\"order\\": \\"#W1\\"}"}}',
    '[{"name": "look", "arguments": {}},{"name": "move", "arguments": {}}]',
    '{"name":"look","arguments":{}}',
    'Action: {"name": "look", "arguments": {"far": 3}}',
    "<|python_tag|>look(far=3)",
    "<|python_tag|>look(3)",
    '<tool_call>{"name": "look", "arguments": [3]}</tool_call>',
    '{"name": "look", "arguments": {"far": NaN, "near": 1}}',
    '{"parameters": 3}',
    '{"ä": [1, null]}',
    '{"function": {"name": "respond", "arguments": {"content": "Shall I?"}}}',
    '[{"name": "look", "arguments": {}}, {"name": "move", "arguments": {"to": [1, 2], "fast": true}}]',
    "2",
    "Perhaps the next observation shows it.",
    "Perhaps the next observation shows that.",
    "Yes.",
    "So he answers yes.",
    "Yes.",
    "Because it answered yes, it was wood.",
)
"""A well-formed text of every grammar that the program reads."""

ADVERSARIAL = (
    "",
    "\0",
    " \n\t\r\x0b\x0c\x85\u2028",
    "[" * 1_000,
    "[" * 20_000,
    "[" * 200 + '"a"' + "]" * 200 + " ",
    '{"name": "\u00e4", "arguments": {"a": ' + "[" * 200 + "]" * 200 + "}}",
    '{"a":' * 3_000,
    f'<tool_call>{{"name": "look", "arguments": {"[" * 2_000}',
    f"<|python_tag|>look(far={'-' * 5_000}3)",
    f"<|python_tag|>look(far={'(' * 5_000})",
    f"<|python_tag|>{'a.' * 5_000}call()",
    f"<|python_tag|>look(far=f'{'{x}' * 10_000}')",
    "Action: type 1 \ue009a\ue004b",
    f'<|python_tag|>{{"name": "look", "parameters": {"[" * 10_000}',
    f"[TOOL_CALLS]look[ARGS]{'[' * 10_000}",
    "[TOOL_CALLS]" * 2_000,
    "<tool_call>" * 2_000,
    "<think>" * 2_000,
    "</think>" * 2_000,
    "9" * 4_301,
    f"[{'9' * 4_301}]",
    f"Action: [{'9' * 4_301}]",
    f"Future: > +8, goal in {'9' * 4_301}",
    f"> +8, goal in {'9' * 4_301}",
    f"to r1c2 then goal n{'9' * 4_301}",
    f"to r{'9' * 4_301}c1 then goal n2",
    f"Environment: agent r{'9' * 4_301}c0 goal r3c3 . H . / none Agent: up Environment: hole "
    "The task failed; reward 0.",
    f"-{'9' * 4_301}: < goal << goal > goal >> goal. pits -1 +1. ends -5 +3",
    '{"name": "look", "arguments": {"far": 9' + "9" * 4_301 + "}}",
    "Environment: x The task succeeded; reward much.",
    "Environment: x The task succeeded; reward nan.",
    "Environment: x The task succeeded; reward 1e999.",
    "Thought:" * 1_500,
    "Thought: a\n" * 1_000,
    "Action:" * 1_500,
    "Optimal: yes " * 1_000,
    "Reason: a\nOptimal: " * 500,
    "is it " * 1_500 + "?",
    "Is it " + "a " * 1_500 + "?",
    "if " * 2_000,
    ", and so, because " * 500,
    '"' * 3_000,
    "\\" * 3_000,
    '{"name": "\\ud83d", "arguments": {"a": "\\ude00"}}',
    "\ud83d half a pair, and \ude00 the other",
    "a\u0301" * 1_000 + "\u202e\u200b\ufeff",
    "١٢٣ ²³ Ⅷ",
    "Is it ²?",
    "İ" * 500 + "ﬃ" * 500,
)
"""Texts made to hurt: deep, long, repeated, half, in other digits and cases."""

TOKENS = (
    *"[]{}()<>\"'\\/:;,.!?|#*-+=_\n\t\0 09",
    "<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
    "[CALL_ID]", "<|python_tag|>", "<|im_end|>", "<|im_start|>", '"name": ', '"arguments": ', '"parameters": ',
    "Thought: ", "Action: ", "Future: ", "Optimal: ", "Reason: ", "yes", "no", "Environment: ", "Agent: ",
    "The task succeeded; reward ", "goal", "pit", "hole", "unclear", " in ", "now", "then ", "r1c2", "+3", "not ",
    "if ", "because ", "the next observation shows ", "Is it ", "Does it ", "than a car?", "null", "true", "1e999",
    "NaN", "-0", "99999999999999999999", "\\u0000", "\\ud83d", "\ud83d", "\u2028", "é", "İ", "٣", "²", "\x1b[31m",
)  # fmt: skip


def corpus() -> list[str]:
    """Real completions, and a text of every grammar."""
    return [*json.loads(FILE.read_text(encoding="utf-8")), *WRITTEN]


def completions(number: int, seed: int = 0, *, plain_first: bool = True) -> Iterator[str]:
    """So many: first all that are well-formed or made to hurt, as they are, then mutated ones alone."""
    stream, texts = Random(seed), corpus()
    plain = [*texts, *ADVERSARIAL]
    if plain_first:
        yield from plain[:number]
    for _ in range(number - plain_first * len(plain)):
        text = stream.choice(plain if stream.random() < 0.1 else texts if stream.random() < 0.5 else WRITTEN)
        for _ in range(1 + int(stream.expovariate(0.5))):
            text = _mutated(text, stream, texts)
        yield text[: LONGEST if stream.random() < 0.995 else 10 * LONGEST]


def _mutated(text: str, stream: Random, texts: list[str]) -> str:
    """The text with one change."""
    at = stream.randrange(len(text) + 1)
    end = min(len(text), at + 1 + int(stream.expovariate(0.1)))
    match stream.randrange(10):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:at] + chr(stream.randrange(0x250)) + text[at + 1 :]
        case 2:
            return text[:at] + text[at:end] * stream.choice((2, 3, 200)) + text[end:]
        case 3:
            return text[:at] + stream.choice(texts)[stream.randrange(40) :]
        case 4:
            return text[:at]
        case 5:
            return text[:at] + text[at:end].swapcase() + text[end:]
        case 6:
            return text[:at] + chr(stream.randrange(0x110000)) + text[at:]
        case 7:
            return text[:at] + stream.choice('[({"9a <\n') * stream.choice((5, 120, 1_200)) + text[at:]
        case _:
            return text[:at] + stream.choice(TOKENS) + text[at:]
