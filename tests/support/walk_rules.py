"""A player of the line walk: random moves, futures one step ahead, and the environment's rules for the rest."""

from random import Random

from tasks.engines.protocol import Request
from tasks.environments.line_walk.roles import rules
from tasks.environments.line_walk.text import ACTIONS, after, read_observation
from tests.support.rules import number_game


def walks(request: Request) -> str:
    """Play every role from its prompt."""
    role, _, prompt = request.messages[-1]["content"].partition(" ")
    if role == "move?":
        return f"Action: {Random(request.sampling.seed).choice(read_observation(prompt).legal)}"
    if role == "foresee":
        observation, _, action = prompt.rpartition(" move ")
        place = read_observation(observation).leads_to[ACTIONS.index(action)]
        return f"Future: {after(action, place, None)}"
    return rules(request)


walks.score = number_game.score  # type: ignore[attr-defined]
