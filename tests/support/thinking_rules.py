"""The players of the number game as a model that thinks before it answers, and never meets its own thought again."""

from tasks.engines.protocol import Request, ScoreRequest
from tests.support.rules import number_game

SECRET = "between us"


def _heard(request: Request | ScoreRequest) -> bool:
    return any(SECRET in message["content"] for message in request.messages)


def thinks(request: Request) -> str:
    """The answer behind a hidden chain of thought; a prompt that shows one is an error."""
    if _heard(request):
        raise ValueError("a hidden chain of thought stands in a prompt")
    assert request.thinking
    return f"<think>\n{SECRET}, {request.sampling.seed % 97}\n</think>\n\n{number_game(request)}"


def _score(request: ScoreRequest) -> object:
    if _heard(request) or any(SECRET in segment for segment in request.segments):
        raise ValueError("a hidden chain of thought is scored")
    return number_game.score(request)  # type: ignore[attr-defined]


thinks.score = _score  # type: ignore[attr-defined]


def never_ends(request: Request) -> str:
    """A thought that max_tokens cuts off."""
    return f"<think>\n{SECRET}, and so on"
