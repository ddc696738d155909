"""Corrects the reasoning of a label: measure the leak, rewrite, measure again, and fall back to `on_failure`.

A label has a visible thought, and of a reasoning model also a hidden chain of thought.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from schemas.config import CorrectionSection, RoleSection
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


_WORST: tuple[CorrectionVerdict, ...] = ("clean", "rewritten", "thought_dropped", "row_dropped")


@dataclass(frozen=True)
class CorrectedLabel:
    """A label's reasoning after correction. `hidden` is None where the label has no hidden chain of thought."""

    thought: Corrected
    hidden: Corrected | None

    @property
    def parts(self) -> tuple[Corrected, ...]:
        """The corrected texts."""
        return (self.thought, self.hidden) if self.hidden else (self.thought,)

    @property
    def verdict(self) -> CorrectionVerdict:
        """The worst verdict on a part: it counts for the row."""
        return max((part.verdict for part in self.parts), key=_WORST.index)

    @property
    def reasoning(self) -> str | None:
        """The hidden chain of thought to train on; None where there is none left."""
        return self.hidden.thought or None if self.hidden else None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that corrected_targets and refinements share."""
        dropped, hidden = self.verdict == "row_dropped", self.hidden
        return {
            "status": "row_dropped" if dropped else "ok",
            "error": "no rewrite of the thought passed the leak check" if dropped else None,
            "verdict": self.verdict,
            "thought": self.thought.thought,
            "leak_before": self.thought.before.share,
            "leak_after": self.thought.after,
            "label_reasoning": self.reasoning,
            "reasoning_verdict": hidden.verdict if hidden else None,
            "reasoning_leak_before": hidden.before.share if hidden else None,
            "reasoning_leak_after": hidden.after if hidden else None,
        }


async def correct_label(
    thought: str,
    reasoning: str | None,
    section: CorrectionSection,
    measure: Callable[[str], Leak],
    rewrite: Callable[[str, bool, int], Awaitable[Rewrite]],
) -> CorrectedLabel:
    """Correct the visible thought of a label, and the hidden chain of thought before it.

    Args:
        thought: the visible one.
        reasoning: the hidden one, as `label_reasoning` gives it.
        section: as for `correct`.
        measure: gives the leak of a text.
        rewrite: (text, whether it is the hidden one, n) -> its n-th rewrite.
    """
    seen = await correct(thought, section, measure, lambda attempt: rewrite(thought, False, attempt))
    if reasoning is None:
        return CorrectedLabel(seen, None)
    hidden = await correct(reasoning, section, measure, lambda attempt: rewrite(reasoning, True, attempt))
    return CorrectedLabel(seen, hidden)


def label_reasoning(student: RoleSection, section: CorrectionSection, reasoning: str | None) -> str | None:
    """The hidden chain of thought that a label begins with, before correction: its end, if it is too long.

    Args:
        student: the role that is trained; one that does not think has none.
        section: `reasoning_chars` is the limit.
        reasoning: as it was written.
    """
    if not student.thinking or not reasoning:
        return None
    if len(reasoning) <= section.reasoning_chars:
        return reasoning
    _, _, whole_words = reasoning[-section.reasoning_chars :].partition(" ")
    return whole_words.strip() or reasoning[-section.reasoning_chars :]
