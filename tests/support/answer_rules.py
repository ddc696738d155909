"""Scripted players of environments with one answer, a sum; and of the example in docs/environments.md."""

import re

from tasks.engines.protocol import Request
from tests.support.rules import number_game, role_of

_SUM = re.compile(r"(\d+) ([+-]) (\d+)")


def sums(request: Request) -> str:
    """A policy that is one off every other time, an evaluator that knows the sum, a refiner that states it."""
    role = role_of(request)
    if role not in ("policy", "refine", "evaluate"):
        return number_game(request)
    prompt = "\n".join(message["content"] for message in request.messages)
    found = _SUM.search(prompt)
    if found is None:
        raise ValueError(f"no sum in the prompt of {role}: {prompt[:200]!r}")
    first, sign, second = int(found[1]), found[2], int(found[3])
    right = first + second if sign == "+" else first - second
    if role == "evaluate":
        given = re.findall(r"Action: (-?\d+)", prompt)[-1]
        return f"Optimal: {'yes' if int(given) == right else 'no'}\nReason: add them up"
    wrong = role == "policy" and request.sampling.seed % 2
    return f"Thought: add them up\nAction: {right + bool(wrong)}"


def hangs(request: Request) -> str:
    """The same, but a third of its answers never end a verifier's computation."""
    if role_of(request) == "policy" and request.sampling.seed % 3 == 0:
        return "Thought: large\nAction: 100000000000!"
    return sums(request)


def takes(request: Request) -> str:
    """Takes one to three sticks, by chance."""
    chance = request.sampling.seed
    if role_of(request) in ("policy", "refine"):
        return f"Thought: leave four\nAction: take {1 + chance % 3}"
    return number_game(request)


for _rules in (sums, hangs, takes):
    _rules.score = number_game.score  # type: ignore[attr-defined]
