"""Whether two answers are the same mathematics, by math-verify. Called in the verifier's process alone."""

import logging

from math_verify import parse, verify

# Its own limits are off, since the process has better ones; it would warn of that for every process.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(gold: str, answer: str) -> float:
    """1 for an answer equal to the gold one, else 0.

    Args:
        gold: the right answer, in LaTeX or plain.
        answer: what was answered: the answer alone, or in a box or between dollar signs.

    Raises:
        ValueError: the gold answer can't be read.
    """
    wanted = parse(_boxed(gold), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify can't read the stated answer {gold!r}")
    given = parse(_boxed(answer), parsing_timeout=None)
    return float(verify(wanted, given, timeout_seconds=None, raise_on_error=True))


def _boxed(text: str) -> str:
    """In a box, so that all of it is read as one answer: of 12 or 13, neither is 12."""
    return text if "\\boxed" in text or "$" in text.replace("\\$", "") else f"\\boxed{{{text}}}"
