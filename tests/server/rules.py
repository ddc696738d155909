"""A scripted player, forecaster, corrector, judge and refiner of a number game, for tests.

Files in the folder that NLAC_TEST_STEER names steer it:
    break   the role written in it kills the stage that asks it
    wait    no request is answered while it is there
    child   the next request leaves a process in a session of its own, as vLLM does, and its id in `child-pid`
"""

import asyncio
import os
import subprocess
from pathlib import Path

from tasks.engines.base import Request, ScoreRequest, Scores


def role_of(request: Request) -> str:
    """Which role a prompt is meant for."""
    system = request.messages[0]["content"]
    if "Optimal:" in system:
        return "evaluate"
    if "Future:" in system:
        return "bootstrap" if "What happened next" in request.messages[-1]["content"] else "predict"
    if "improved answer" in system:
        return "refine"
    return "policy" if "Action:" in system else "correct"


async def _follow_steering(role: str) -> None:
    steer = Path(os.environ["NLAC_TEST_STEER"])
    if (steer / "break").exists() and (steer / "break").read_text() == role:
        raise SystemExit(f"broken on purpose: {role}")
    if (steer / "child").exists():
        (steer / "child").unlink()
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (steer / "child-pid").write_text(str(child.pid))
    while (steer / "wait").exists():
        await asyncio.sleep(0.1)


async def number_game(request: Request) -> str:
    """Write what the role would write."""
    role = role_of(request)
    await _follow_steering(role)
    guess = 1 + request.sampling.seed % 20
    return {
        "policy": f"Thought: halves are quick\nAction: [{guess}]",
        "refine": f"Thought: closer to the middle\nAction: [{1 + (guess + 7) % 20}]",
        "predict": "Thought: hints narrow it down\nFuture: some more guesses, then it is found",
        "bootstrap": "Thought: if a hint follows, it narrows the range\nFuture: a hint, then it is found",
        "evaluate": f"Optimal: {'yes' if guess % 4 == 0 else 'no'}\nReason: halve the range instead",
        "correct": "if a hint follows, it narrows the range",
    }[role]


def _score(request: ScoreRequest) -> Scores:
    return Scores(tuple(tuple(-1.0 for _ in segment.split()) for segment in request.segments))


number_game.score = _score  # type: ignore[attr-defined]
