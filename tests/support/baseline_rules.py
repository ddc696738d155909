"""Scripted players of the number game whose baselines can be worked out by hand."""

import re

from tasks.engines.protocol import Request, ScoreRequest, Scores
from tests.support.rules import number_game, role_of


def counting(request: Request) -> str:
    """A policy that guesses 1, 2, 3, ... in turn, and an evaluator that never finds that optimal."""
    role = role_of(request)
    if role == "policy":
        turns = sum(message["role"] == "assistant" for message in request.messages)
        return f"Thought: one more\nAction: [{turns + 1}]"
    return "Optimal: no\nReason: halve the range instead" if role == "evaluate" else number_game(request)


def aggregating(request: Request) -> str:
    """The usual player. It values an action by how far the guess is from 10 and by its rollouts, and chooses the
    nearest one, the first of equals; of every fifth action it says nothing that can be read."""
    system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
    if "its number alone" in system:
        away = [int(value) for value in re.findall(r"^Evaluation \d+: (\d+) away", prompt, re.MULTILINE)]
        return str(away.index(min(away)) + 1)
    if "Evaluation:" in system:
        guess = int(re.findall(r"now answers:\n.*\nAction: \[(\d+)\]", prompt)[-1])
        rollouts = len(re.findall(r"^\d+\. ", prompt.partition("played on from there:")[2], re.MULTILINE))
        said = f"{abs(guess - 10)} away over {rollouts} episodes"
        return said if guess % 5 == 0 else f"Evaluation: {said}"
    return number_game(request)


def valuing(request: Request) -> str:
    """The usual player; its evaluator's log p(yes) falls by 0.5 with each number that a guess is away from 10."""
    return number_game(request)


def log_yes(guess: int) -> float:
    """What `valuing` scores "yes" with."""
    return -0.5 * abs(guess - 10)


LOG_NO = -1.0


def _score(request: ScoreRequest) -> Scores:
    if request.segments[0] != "Optimal:":
        return Scores(tuple(tuple(-0.25 for _ in segment.encode()) for segment in request.segments))
    guess = int(re.findall(r"Action: \[(\d+)\]", request.messages[-1]["content"])[-1])
    return Scores(((-3.0,), (log_yes(guess) if request.segments[1] == " yes" else LOG_NO,)))


valuing.score = _score  # type: ignore[attr-defined]
