"""Scripted players of two pages of MiniWoB++, for tests. They read nothing but the prompt."""

from tasks.engines.protocol import Request
from tasks.environments.miniwob.solutions import solve
from tests.support.rules import number_game, role_of


def player(request: Request) -> str:
    """Every role. One action in three clicks the first element, or one that is not there; the others solve the page."""
    if role_of(request) not in ("policy", "refine"):
        return number_game(request)
    prompt = request.messages[-1]["content"]
    task = [line for line in prompt.splitlines() if line.startswith("Task: ")][-1]
    seen = task + prompt.rpartition(task)[2]
    page = "login-user" if "username" in task else "click-checkboxes"
    luck = request.sampling.seed % 6
    action = {0: "click 1", 1: "click 99"}.get(luck) or solve(page, seen)
    return f"Thought: onwards\nAction: {action}"


player.score = number_game.score  # type: ignore[attr-defined]
