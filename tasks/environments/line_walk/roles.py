"""The backup, evaluator, refiner and corrector of the line walk as rules. `evaluator` is the same with a graded
verdict.

The final choice among equals is drawn: the first would be the policy's own action, which is then distilled although
nothing speaks for it.
"""

from tasks.environments.forecast import GOAL
from tasks.environments.line_walk.text import (
    PIT,
    Foreseen,
    after,
    read_description,
    read_future,
    read_observation,
)
from tasks.environments.scripted_roles import Evaluator, Rules, field, fields


def _back_up(prompt: str) -> Foreseen:
    """From r if the episode ended; else the move, the next cell, and the next future one step longer."""
    action, foreseen = field(prompt, "action"), fields(prompt, "next future")
    if not foreseen:
        return after(action, GOAL if float(field(prompt, "reward")) > 0 else PIT, None)
    place = read_observation(field(prompt, "next state")).at
    return after(action, place, read_description(foreseen[0]))


rules = Rules(read_observation, read_future, _back_up, draw_ties=True)
evaluator = Evaluator(rules)
