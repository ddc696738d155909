"""How varied actions are: a policy that collapses onto one of several equally good actions loses entropy."""

import math
from collections import Counter
from collections.abc import Iterable


def action_entropy(actions: Iterable[str]) -> float:
    """Entropy in nats of how often each action occurs, whatever the state; 0 for one action, or none."""
    counts = Counter(actions)
    total = counts.total()
    return sum(count / total * math.log(total / count) for count in counts.values())
