"""Demonstrations of optimal play in worlds whose exact values are known."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from tasks.datasets.solved_states import optimal_demonstrations
from tasks.environments.base import KnowsBestActions
from tasks.environments.forecast import Forecast
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake import text as lake_text
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk import text as walk_text

LAKES, WALK = FrozenLake(maps=4), LineWalk(cells=7, held_out=2)
Exact = Mapping[str, np.ndarray]


def lake_values() -> Exact:
    return {
        lake.observations[state]: lake.q_star(LAKES.gamma)[state]
        for lake in LAKES.lakes("train")
        for state in lake.reachable
    }


def walk_values() -> Exact:
    return {
        line.observation(state): line.q_star(WALK.gamma)[state]
        for line in WALK.lines("train")
        for state in line.states
    }


@pytest.mark.parametrize(
    ("world", "exact", "actions", "read"),
    [
        (LAKES, lake_values(), lake_text.ACTIONS, lake_text.read_description),
        (WALK, walk_values(), walk_text.ACTIONS, walk_text.read_description),
    ],
    ids=["frozen_lake", "line_walk"],
)
def test_optimal_demonstrations_are_the_best_actions_and_what_each_action_leads_to(
    world: FrozenLake | LineWalk,
    exact: Exact,
    actions: Sequence[str],
    read: Callable[[str], Forecast | None],
) -> None:
    assert isinstance(world, KnowsBestActions)
    rows = 2 * len(exact) + 5
    told = optimal_demonstrations(world, rows, seed=0)
    assert Counter(told["role"]) == {"policy": rows, "predict": 2 * rows}
    seen = Counter(told.filter(role="policy")["observation"])
    assert set(seen) == set(exact) and set(seen.values()) == {2, 3}, "a state waits for all the others"
    for observation, action in told.filter(role="policy").select("observation", "answer").rows():
        assert exact[observation][actions.index(action)] == pytest.approx(exact[observation].max())
    predicted = told.filter(role="predict").select("observation", "action_text", "answer").rows()
    for observation, text, description in predicted:
        future, action = read(description), text.removeprefix("Action: ")
        assert action in world.legal_actions(observation)
        assert future is not None
        assert future.value(world.gamma) == pytest.approx(exact[observation][actions.index(action)])
    assert optimal_demonstrations(world, rows, seed=0).equals(told)
    assert not optimal_demonstrations(world, rows, seed=1).equals(told)
