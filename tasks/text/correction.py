"""Corrects a chain of thought: measure the leak, rewrite, measure again, and fall back to `on_failure`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from schemas.config import CorrectionSection
from schemas.rows import Generation
from tasks.text.leaks import Leak

CorrectionVerdict = Literal["clean", "rewritten", "thought_dropped", "row_dropped"]


@dataclass(frozen=True)
class Rewrite:
    """The corrector's text; empty if its request failed."""

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

    Every rewrite is measured. Above the threshold another is requested, up to `section.attempts` in all; then the
    thought or the whole row is dropped (`section.on_failure`).

    Args:
        thought: the original; an empty one is clean.
        section: threshold, number of attempts, and what to drop if no rewrite passes.
        measure: gives the leak of a thought.
        rewrite: requests the n-th rewrite from the corrector.
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
