"""The scripted evaluator's judgement of futures: its verdict, and its probability of "yes"."""

from collections.abc import Sequence
from statistics import median

from tasks.environments.frozen_lake.text import Foreseen, Seen, read_future

DOUBT = 0.001  # smallest distance of a probability from 0 and 1


def judged_optimal(seen: Seen, futures: Sequence[str]) -> bool:
    """The evaluator's verdict.

    Yes if most futures reach the goal and the median of their numbers of actions is at most the Manhattan distance to
    the goal. A laxer rule lets the policy wander, because every path that reaches the goal in the end would be optimal.

    Args:
        seen: the state.
        futures: predicted or played; one that can't be parsed does not reach the goal.
    """
    steps = [f.steps for f in _reaching(futures) if f.steps is not None]
    return 2 * len(steps) > len(futures) and median(steps) <= seen.distance


def optimal_probability(seen: Seen, futures: Sequence[str], gamma: float) -> float:
    """The evaluator's probability of "yes", between DOUBT and 1 - DOUBT.

    It is linear in the mean over the futures of gamma^(N-D), where N is the number of actions to the goal and D the
    Manhattan distance to it: 1 for a shortest path (or a claim of a shorter one), less for a detour, 0 without the
    goal. So the actions of a state rank by the mean value of their futures, even if the direct way is blocked and every
    verdict is "no".

    Args:
        seen: the state.
        futures: predicted or played.
        gamma: the discount.
    """
    shares = [gamma ** max(f.steps - seen.distance, 0) for f in _reaching(futures) if f.steps is not None]
    return DOUBT + (1 - 2 * DOUBT) * sum(shares) / len(futures)


def _reaching(futures: Sequence[str]) -> list[Foreseen]:
    return [f for f in map(read_future, futures) if f is not None and f.outcome == "goal"]
