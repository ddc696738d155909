"""Correcting a chain of thought: measure the leak, rewrite, measure again, give up in a stated order."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from schemas.config import CorrectionSection
from schemas.rows import Generation
from tasks.text.leaks import Leak

CorrectionVerdict = Literal["clean", "rewritten", "thought_dropped", "row_dropped"]


@dataclass(frozen=True)
class Rewrite:
    """What the corrector wrote; an empty text where its request failed."""

    text: str
    generation: Generation | None
    reasoning: str | None = None


@dataclass(frozen=True)
class Corrected:
    """A thought after correction."""

    verdict: CorrectionVerdict
    thought: str
    before: Leak
    after: float
    attempts: int
    generation: Generation | None
    reasoning: str | None = None


async def correct(
    thought: str,
    section: CorrectionSection,
    measure: Callable[[str], Leak],
    rewrite: Callable[[int], Awaitable[Rewrite]],
) -> Corrected:
    """Rewrite a thought until it no longer leaks.

    A rewrite is checked, not trusted: above the threshold it is asked for again, up to `section.attempts`
    times; then the thought goes, or the whole row (`section.on_failure`).

    Args:
        thought: as written; an empty one is clean.
        section: threshold, attempts, and what happens when no rewrite passes.
        measure: leak of a thought.
        rewrite: asks the corrector for the n-th rewrite.
    """
    before = measure(thought)
    if not section.enabled or before.share <= section.threshold:
        return Corrected("clean", thought, before, before.share, 0, None)
    last = Rewrite("", None)
    for attempt in range(section.attempts):
        last = await rewrite(attempt)
        if last.text and (after := measure(last.text).share) <= section.threshold:
            return Corrected(
                "rewritten", last.text, before, after, attempt + 1, last.generation, last.reasoning
            )
    verdict: CorrectionVerdict = "thought_dropped" if section.on_failure == "drop_thought" else "row_dropped"
    return Corrected(verdict, "", before, 0.0, section.attempts, last.generation, last.reasoning)
