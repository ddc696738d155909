"""Success over several plays: the interval of a rate, and how reliably one task is solved."""

import math
from collections import defaultdict
from collections.abc import Sequence

from schemas.rows import Episode

Z95 = 1.959963984540054  # the standard normal distribution's 97.5% quantile


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95% Wilson score interval of a rate (Wilson 1927), in [0, 1].

    Raises:
        ValueError: no trials.
    """
    if trials < 1:
        raise ValueError("an interval needs at least one trial")
    rate, z2 = successes / trials, Z95**2
    middle = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_hat(episodes: Sequence[Episode]) -> list[float] | None:
    """pass^k for k = 1, 2, ...: the probability that k plays of a task all succeed (Yao et al. 2024, tau-bench).

    For a task with c successes in n plays that is C(c, k) / C(n, k), averaged over tasks.

    Args:
        episodes: played to an end.

    Returns:
        One value per k, up to the fewest plays of any task; None if no task was played twice.
    """
    plays: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        plays[episode.task_id].append(episode.success)
    if all(len(won) < 2 for won in plays.values()):
        return None
    return [
        sum(math.comb(sum(won), k) / math.comb(len(won), k) for won in plays.values()) / len(plays)
        for k in range(1, min(map(len, plays.values())) + 1)
    ]
