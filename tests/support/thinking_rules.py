"""The players of the number game as a model that thinks before it answers, and never meets its own thought again."""

from collections.abc import Callable

from tasks.engines.protocol import Request, ScoreRequest
from tests.support import answer_rules, question_rules, service
from tests.support.rules import number_game

SECRET = "between us"


def _heard(request: Request | ScoreRequest) -> bool:
    return any(SECRET in message["content"] for message in request.messages)


def _score(request: ScoreRequest) -> object:
    if _heard(request) or any(SECRET in segment for segment in request.segments):
        raise ValueError("a hidden chain of thought is scored")
    return number_game.score(request)  # type: ignore[attr-defined]


def thinking(plays: Callable[[Request], str]) -> Callable[[Request], str]:
    """Players whose answers stand behind a hidden chain of thought; a prompt that shows one is an error."""

    def thinks(request: Request) -> str:
        if _heard(request):
            raise ValueError("a hidden chain of thought stands in a prompt")
        assert request.thinking
        return f"<think>\n{SECRET}, {request.sampling.seed % 97}\n</think>\n\n{plays(request)}"

    thinks.score = _score  # type: ignore[attr-defined]
    return thinks


thinks = thinking(number_game)
sums = thinking(answer_rules.sums)
questions = thinking(question_rules.player)
serves = thinking(service.service)


def never_ends(request: Request) -> str:
    """A thought that max_tokens cuts off."""
    return f"<think>\n{SECRET}, and so on"
