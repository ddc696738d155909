"""Equality of two answers by math-verify. Runs only in the verifier's process."""

import logging

from math_verify import parse, verify

# math-verify warns that its own limits are off; the verifier's process has better ones.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(gold: str, answer: str) -> float:
    """1 if the answer equals the gold answer, else 0.

    Args:
        gold: the right answer, in LaTeX or plain.
        answer: the given answer: alone, in a box, or between dollar signs.

    Raises:
        ValueError: the gold answer can't be parsed.
    """
    wanted = parse(_boxed(gold), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify can't read the stated answer {gold!r}")
    given = parse(_boxed(answer), parsing_timeout=None)
    return float(verify(wanted, given, timeout_seconds=None, raise_on_error=True))


def _boxed(text: str) -> str:
    """The text in a box, so that it counts as one answer: '12 or 13' is not 12."""
    return text if "\\boxed" in text or "$" in text.replace("\\$", "") else f"\\boxed{{{text}}}"


# Loads what parsing needs, once for all processes that are forked after the import.
score("\\frac{1}{2}", "0.5")
