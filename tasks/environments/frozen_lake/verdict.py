"""The scripted evaluator's judgement of futures, given as texts: its verdict, and its probability of "yes"."""

from collections.abc import Sequence

from tasks.environments import forecast
from tasks.environments.frozen_lake.text import Seen, read_future


def judged_optimal(seen: Seen, futures: Sequence[str]) -> bool:
    """The evaluator's verdict; the distance is the Manhattan distance to the goal."""
    return forecast.judged_optimal([read_future(text) for text in futures], seen.distance)


def optimal_probability(seen: Seen, futures: Sequence[str], gamma: float) -> float:
    """The evaluator's probability of "yes"; the distance is the Manhattan distance to the goal."""
    return forecast.optimal_probability([read_future(text) for text in futures], seen.distance, gamma)
