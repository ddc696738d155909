"""Exact measures of learning on the frozen lake; those that need no lake are in `tasks.environments.exact`.

`probabilities`, `predicted` and `exact` are [states, 4], with actions in the order of `text.ACTIONS`. The rows of
`optimal_share` are the states of `Lake.reachable`, of any number of maps.
"""

from math import log

from tasks.environments.exact import Array
from tasks.environments.exact import auroc as auroc
from tasks.environments.exact import optimal_actions as optimal_actions
from tasks.environments.exact import optimal_share as optimal_share
from tasks.environments.exact import rank_agreement as rank_agreement
from tasks.environments.forecast import LONGEST
from tasks.environments.frozen_lake.maps import Lake
from tasks.environments.frozen_lake.text import Foreseen, write_cell


def success_probability(lake: Lake, probabilities: Array, horizon: int = 12) -> float:
    """Probability of reaching the goal from S within `horizon` actions, from the exact state distribution.

    Args:
        lake: a map.
        probabilities: of the actions in every state of the map; see `Dynamics.success_probability`.
        horizon: number of actions.
    """
    return lake.dynamics().success_probability(lake.reachable[0], probabilities, horizon)


def exact_future(lake: Lake, state: int, action: int, exact: Array, gamma: float) -> str:
    """The true description of an action followed by optimal play, on a lake that is not slippery.

    It gives the best possible result of an evaluator, and labels from dynamic programming for a model.

    Args:
        lake: a map.
        state: number of the cell.
        action: number of the action.
        exact: `lake.q_star(gamma)`.
        gamma: discount, below 1.

    Raises:
        ValueError: the lake is slippery, so an action has more than one future.
    """
    outcomes = lake.effects[state][action]
    if len(outcomes) > 1:
        raise ValueError(
            f"map {lake.seed} is slippery: an action has no single future; set slippery to false"
        )
    effect = outcomes[0]
    if effect.done:
        return str(Foreseen("goal" if effect.reward > 0 else "hole", 1, None))
    cell, value = write_cell(lake.cell(effect.state)), exact[state, action]
    steps = 1 + round(log(value) / log(gamma)) if value > 0 else LONGEST + 1
    return str(Foreseen("goal", steps, cell) if steps <= LONGEST else Foreseen("unclear", None, cell))
