"""The player of the number game that keeps every prompt that it was asked with."""

from tasks.engines.protocol import Request
from tests.support.rules import number_game

PROMPTS: set[tuple[tuple[str, str], ...]] = set()


def player(request: Request) -> str:
    """As `tests.support.rules.number_game`; nothing scores."""
    PROMPTS.add(tuple((message["role"], message["content"]) for message in request.messages))
    return number_game(request)
