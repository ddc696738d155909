"""The players of the number game with improvers that follow a script, for tests of refinement in rounds."""

from dataclasses import dataclass, field

from tasks.engines.protocol import Request
from tests.support.rules import number_game, role_of


@dataclass
class Script:
    """What the improving roles say next, and what they were asked.

    Attributes:
        verdicts: of the evaluator, in order, the first on the action to improve: "yes", "no" or rubbish.
        proposals: of the refiner, in order: numbers.
        thought: of every proposal.
        choice: of the final choice.
        rewrites: of the corrector, in order, the last again and again.
        asked: role and last message of each request to them.
    """

    verdicts: list[str] = field(default_factory=list)
    proposals: list[int] = field(default_factory=list)
    thought: str = "low numbers are left"
    choice: str = "1"
    rewrites: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

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
        return f"Thought: {SCRIPT.thought}\nAction: [{SCRIPT.proposals[number - 1]}]"
    return SCRIPT.choice if role == "choose" else SCRIPT.rewrites[min(number, len(SCRIPT.rewrites)) - 1]
