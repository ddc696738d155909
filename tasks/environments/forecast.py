"""What a description of a future says in the end: how an episode ends, and after how many actions. Shared by the worlds
with one goal, whose exact values are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasks.text.transcript import read_transcript

GOAL, UNCLEAR = "goal", "unclear"
LONGEST = 16  # actions to an end; anything later is unclear
DOUBT = 0.001  # smallest distance of a probability from 0 and 1


@dataclass(frozen=True)
class Forecast:
    """An ending.

    Attributes:
        outcome: GOAL, UNCLEAR, or the world's word for failure.
        steps: actions to the end, including the described one; None if unclear.
    """

    outcome: str
    steps: int | None

    def value(self, gamma: float) -> float:
        """gamma^(steps-1) for a goal, which is exactly Q(s, a) along the described path; 0 for anything else."""
        return gamma ** (self.steps - 1) if self.outcome == GOAL and self.steps else 0.0

    def one_step_earlier(self) -> "Forecast":
        """The same end, seen one action before."""
        if self.steps is None or self.steps >= LONGEST:
            return Forecast(UNCLEAR, None)
        return Forecast(self.outcome, self.steps + 1)


def read_played(text: str, failure: str) -> tuple[Forecast, str] | None:
    """The ending of a played future, and its first observation; None if the text is not a transcript.

    The steps are counted and the end is as stated; nothing is planned. A future that was cut off, or is longer than
    LONGEST, is unclear.

    Args:
        text: the future.
        failure: the world's word for failure.
    """
    played = read_transcript(text)
    if played is None:
        return None
    outcome, steps = (
        {"success": GOAL, "failure": failure, "cut_off": UNCLEAR}[played.ending],
        len(played.observations),
    )
    known = outcome != UNCLEAR and steps <= LONGEST
    return (Forecast(outcome, steps) if known else Forecast(UNCLEAR, None)), played.observations[0]


def mean_value(futures: Sequence[Forecast | None], gamma: float) -> float:
    """The mean value of futures; one that can't be read (None) is worth 0."""
    return sum(future.value(gamma) if future else 0.0 for future in futures) / len(futures)


def judged_optimal(futures: Sequence[Forecast | None], distance: int) -> bool:
    """The scripted evaluator's verdict.

    Yes if most futures reach the goal and the median of their numbers of actions is at most the distance to the goal
    with nothing in the way. A laxer rule lets the policy wander, because every path that reaches the goal in the end
    would be optimal.

    Args:
        futures: predicted or played; None, one that can't be read, does not reach the goal.
        distance: actions of the straight way from the state.
    """
    steps = _steps_to_goal(futures)
    return 2 * len(steps) > len(futures) and median(steps) <= distance


def optimal_probability(futures: Sequence[Forecast | None], distance: int, gamma: float) -> float:
    """The scripted evaluator's probability of "yes", between DOUBT and 1 - DOUBT.

    It is linear in the mean over the futures of gamma^(N-D), where N is the number of actions to the goal and D the
    distance to it: 1 for a shortest path (or a claim of a shorter one), less for a detour, 0 without the goal. So the
    actions of a state rank by the mean value of their futures, even if the direct way is blocked and every verdict is
    "no".
    """
    shares = [gamma ** max(steps - distance, 0) for steps in _steps_to_goal(futures)]
    return DOUBT + (1 - 2 * DOUBT) * sum(shares) / len(futures)


def _steps_to_goal(futures: Sequence[Forecast | None]) -> list[int]:
    return [f.steps for f in futures if f is not None and f.outcome == GOAL and f.steps is not None]
