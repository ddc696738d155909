"""The players of the number game with improvers that follow a script, for tests of refinement in rounds."""

import math
import re
from dataclasses import dataclass, field

from tasks.engines.protocol import Request, ScoreRequest, Scores
from tests.support.rules import number_game, role_of


@dataclass
class Script:
    """What the improving roles say next, and what they were asked. A proposal 0 repeats the action to improve.

    Attributes:
        verdicts: of the evaluator, in order, the first on the action to improve: "yes", "no" or rubbish.
        proposals: of the refiner, in order: numbers.
        thought: of every proposal.
        choice: of the final choice.
        rewrites: of the corrector, in order, the last again and again.
        shares: of `weighed`, the probabilities of yes, in order, the first for the action to improve.
        asked: role and last message of each request to them.
        scored: what was scored, with the last message before it.
    """

    verdicts: list[str] = field(default_factory=list)
    proposals: list[int] = field(default_factory=list)
    thought: str = "low numbers are left"
    choice: str = "1"
    rewrites: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    scored: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def prompts(self, role: str) -> list[str]:
        """What a role was asked."""
        return [prompt for asked, prompt in self.asked if asked == role]


SCRIPT = Script()


def scripted(request: Request) -> str:
    """The improving roles by SCRIPT; the policy guesses from 11 to 20, so that low numbers are untried."""
    role = role_of(request)
    if role == "policy":
        return f"Thought: a high one\nAction: [{11 + request.sampling.seed % 10}]"
    if role not in ("evaluate", "refine", "choose", "correct"):
        return number_game(request)
    SCRIPT.asked.append((role, request.messages[-1]["content"]))
    number = len(SCRIPT.prompts(role))
    if role == "evaluate":
        verdict = SCRIPT.verdicts[number - 1]
        return (
            f"Optimal: {verdict}\nReason: critique number {number}" if verdict in ("yes", "no") else verdict
        )
    if role == "refine":
        proposed = SCRIPT.proposals[number - 1]
        begun = re.findall(r"Answer 1:\n.*\nAction: \[(\d+)\]", SCRIPT.asked[-1][1])
        return f"Thought: {SCRIPT.thought}\nAction: [{proposed or begun[0]}]"
    return SCRIPT.choice if role == "choose" else SCRIPT.rewrites[min(number, len(SCRIPT.rewrites)) - 1]


def weighed(request: Request) -> str:
    """An evaluator that scores: it explains the verdict that it is told or held to, or reasons first and says no."""
    SCRIPT.asked.append(("evaluate", request.messages[-1]["content"]))
    reason = f"critique number {len(SCRIPT.prompts('evaluate'))}"
    told = re.search(r"You have found: (Optimal: \w+)", request.messages[-1]["content"])
    told = told or re.match(r"(Optimal: \w+)", request.regex or "")
    return f"{told[1]}\nReason: {reason}" if told else f"Reason: {reason}\nOptimal: no"


def _score(request: ScoreRequest) -> Scores:
    SCRIPT.scored.append((request.messages[-1]["content"], request.segments))
    seen = list(dict.fromkeys(prompt for prompt, _ in SCRIPT.scored))
    share = SCRIPT.shares[seen.index(request.messages[-1]["content"])]
    return Scores(((-1.0,), (math.log(share if request.segments[1] == " yes" else 1 - share),)))


weighed.score = _score  # type: ignore[attr-defined]
