"""Scripted players of the number game, for tests. They read nothing but the prompt."""

import asyncio
import os
import re
from hashlib import sha256
from pathlib import Path
from weakref import WeakKeyDictionary

from tasks.engines.protocol import Request, ScoreRequest, Scores


def role_of(request: Request) -> str:
    """Which role a prompt is meant for."""
    system = request.messages[0]["content"]
    if "Optimal:" in system:
        return "evaluate"
    if "Future:" in system:
        return "bootstrap" if "What happened next" in request.messages[-1]["content"] else "predict"
    if "its number alone" in system:
        return "choose"
    if "improved answer" in system:
        return "refine"
    return "policy" if "Action:" in system else "correct"


def number_game(request: Request) -> str:
    """Write what the role would write; every fourth action is judged optimal, every third backup leaks."""
    chance = request.sampling.seed
    guess = 1 + chance % 20
    leaky, optimal = chance % 3 == 0, "yes" if guess % 4 == 0 else "no"
    return {
        "policy": f"Thought: halves are quick\nAction: [{guess}]",
        "refine": f"Thought: closer to the middle\nAction: [{1 + (guess + 7) % 20}]",
        "predict": "Thought: hints narrow it down\nFuture: some more guesses, then it is found",
        "bootstrap": (
            f"Thought: {'The next observation shows a hint' if leaky else 'if a hint follows, the range narrows'}\n"
            "Future: a hint, then it is found"
        ),
        "evaluate": f"Optimal: {_told(request) or optimal}\nReason: halve the range instead",
        "correct": "if a hint follows, it narrows the range"
        if chance % 2
        else "The next observation shows a hint",
        "choose": "1",
    }[role_of(request)]


def _told(request: Request) -> str | None:
    """The verdict that a reason is asked for, where a score has found it."""
    held_to = re.match(r"Optimal: (yes|no)\b", request.regex or "")
    return held_to[1] if held_to else None


def _score(request: ScoreRequest) -> Scores:
    return Scores(tuple(tuple(-0.25 for _ in segment.encode()) for segment in request.segments))


number_game.score = _score  # type: ignore[attr-defined]


def unscored(request: Request) -> str:
    """The same player on an engine that gives no log-probabilities."""
    return number_game(request)


def rubbish(request: Request) -> str:
    """A model that follows no format, and sometimes writes nothing."""
    return (
        ""
        if request.sampling.seed % 5 == 0
        else "zxcv [[ \n\n Optimal maybe" * (1 + request.sampling.seed % 3)
    )


def counted(request: Request) -> str:
    """The player, noting every request in the file NLAC_TEST_COUNT; dies at the request numbered
    NLAC_TEST_DIE_AT."""
    path = Path(os.environ["NLAC_TEST_COUNT"])
    with path.open("a") as notes:
        notes.write(f"{role_of(request)}\n")
    if len(path.read_text().splitlines()) == int(os.environ.get("NLAC_TEST_DIE_AT", "-1")):
        raise SystemExit("died on purpose")
    return number_game(request)


counted.score = _score  # type: ignore[attr-defined]


CAP = 4
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def noted(request: Request) -> str:
    """The player, who answers CAP requests at a time and takes a while; the file NLAC_TEST_COUNT has a line for each
    one that it has begun with."""
    digest = sha256(repr((request.messages, request.sampling)).encode()).hexdigest()
    async with _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CAP)):
        with Path(os.environ["NLAC_TEST_COUNT"]).open("a") as notes:
            notes.write(f"{digest}\n")
        await asyncio.sleep(0.005)
        return number_game(request)


noted.score = _score  # type: ignore[attr-defined]


def refines_badly(request: Request) -> str:
    """The player, whose refinements are never an action and whose judge never finds one optimal."""
    role = role_of(request)
    if role == "evaluate":
        return "Optimal: no\nReason: halve the range instead"
    return "I would rather not" if role == "refine" else number_game(request)


refines_badly.score = _score  # type: ignore[attr-defined]
