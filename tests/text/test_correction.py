"""Correction by hand: a thought's leak is the share of its words that are "leak"."""

import asyncio
from typing import Any

import pytest

from schemas.config import CorrectionSection
from tasks.text.correction import Corrected, Rewrite, correct
from tasks.text.leaks import Leak


def measure(thought: str) -> Leak:
    words = thought.split()
    return Leak(words.count("leak") / len(words) if words else 0.0, ())


def corrected(thought: str, rewrites: list[str], **section: Any) -> tuple[Corrected, int]:
    """The result, and how many rewrites were asked for."""
    asked: list[int] = []

    async def rewrite(attempt: int) -> Rewrite:
        asked.append(attempt)
        return Rewrite(rewrites[attempt], None)

    result = asyncio.run(correct(thought, CorrectionSection(**section), measure, rewrite))
    assert asked == list(range(len(asked)))
    return result, len(asked)


@pytest.mark.parametrize(
    ("thought", "rewrites", "section", "verdict", "left", "after", "asked"),
    [
        ("all is fine", [], {}, "clean", "all is fine", 0.0, 0),
        ("", [], {}, "clean", "", 0.0, 0),
        ("a leak b c", ["fine"], {}, "rewritten", "fine", 0.0, 1),
        # The threshold is the largest share that passes, of a thought and of its rewrites.
        ("a leak b c", [], {"threshold": 0.25}, "clean", "a leak b c", 0.25, 0),
        ("a leak b", ["leak b", "a leak b c"], {"threshold": 0.25}, "rewritten", "a leak b c", 0.25, 2),
        # A corrector that writes nothing has not rewritten.
        ("a leak", ["", "fine"], {}, "rewritten", "fine", 0.0, 2),
        ("a leak", ["leak", "leak"], {}, "thought_dropped", "", 0.0, 2),
        ("a leak", ["leak"] * 5, {"attempts": 5}, "thought_dropped", "", 0.0, 5),
        ("a leak", ["leak", ""], {"on_failure": "drop_row"}, "row_dropped", "", 0.0, 2),
        ("a leak", [], {"enabled": False}, "clean", "a leak", 0.5, 0),
    ],
)
def test_a_thought_is_rewritten_until_it_passes_or_given_up(
    thought: str,
    rewrites: list[str],
    section: dict[str, Any],
    verdict: str,
    left: str,
    after: float,
    asked: int,
) -> None:
    result, requests = corrected(thought, rewrites, **section)
    assert (result.verdict, result.thought, result.after, requests) == (verdict, left, after, asked)
    assert result.attempts == asked and result.before == measure(thought)
