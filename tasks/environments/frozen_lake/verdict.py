"""What the scripted evaluator makes of the futures it reads: a verdict, and how probable it holds "yes" to be."""

from collections.abc import Sequence
from statistics import median

from tasks.environments.frozen_lake.text import Foreseen, Seen, read_future

DOUBT = 0.001  # no probability is nearer to 0 or 1


def judged_optimal(seen: Seen, futures: Sequence[str]) -> bool:
    """The evaluator's verdict.

    Yes only if most futures reach the goal, and the median number of actions of those that do is no more than
    the straight distance to the goal. Any less strict rule lets the policy wander: every way that gets there in
    the end would be optimal.

    Args:
        seen: the state.
        futures: predicted or played; one that can't be read does not reach the goal.
    """
    steps = [f.steps for f in _reaching(futures) if f.steps is not None]
    return 2 * len(steps) > len(futures) and median(steps) <= seen.distance


def optimal_probability(seen: Seen, futures: Sequence[str], gamma: float) -> float:
    """The evaluator's probability of "yes", between DOUBT and 1 - DOUBT.

    It grows linearly with the mean over the futures of gamma^(N-D), N being the actions up to the goal and D the
    straight distance to it: 1 where a future takes the straight way (or claims a shorter one), less for a detour,
    0 for a future without the goal. So the actions of one state rank by the mean value of their futures, also where
    the straight way is closed and the verdict is "no" for all of them.

    Args:
        seen: the state.
        futures: predicted or played.
        gamma: the discount.
    """
    shares = [gamma ** max(f.steps - seen.distance, 0) for f in _reaching(futures) if f.steps is not None]
    return DOUBT + (1 - 2 * DOUBT) * sum(shares) / len(futures)


def _reaching(futures: Sequence[str]) -> list[Foreseen]:
    return [f for f in map(read_future, futures) if f is not None and f.outcome == "goal"]
