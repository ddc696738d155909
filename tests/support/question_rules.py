"""Scripted players and oracles of 20 Questions, for tests."""

from tasks.engines.protocol import Request
from tests.support.rules import number_game, role_of

ASKED = (
    "Is it an animal?",
    "Is it made of metal?",
    "Can you eat it?",
    "Is it a hot dog?",
    "Does it sleep furiously?",
)


def player(request: Request) -> str:
    """Asks one of five questions, by the seed; the last of them is none. Other roles as in the number game."""
    question = ASKED[request.sampling.seed % len(ASKED)]
    role = role_of(request)
    if role in ("policy", "refine"):
        return f"Thought: let me see\nAction: {question}"
    return number_game(request)


player.score = number_game.score  # type: ignore[attr-defined]


def oracle(request: Request) -> str:
    """Says that every object is an animal and nothing else, and babbles about metal."""
    question = request.messages[-1]["content"]
    if "metal" in question:
        return "Perhaps."
    return "Yes" if "animal" in question else "No"
