"""FrozenLake of gymnasium as compact text: a small MDP whose exact action values are known.

`text` holds the wording, `maps` the dynamics and dynamic programming, `roles` the scripted backup, evaluator,
refiner and corrector, and `word_model` a tiny language model for the policy and the successor.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from schemas.rows import Split
from tasks.environments.base import ActionFormat, SolvedState, Step, Task
from tasks.environments.frozen_lake.maps import Lake, generate_maps, make_lake
from tasks.environments.frozen_lake.measures import exact_future, optimal_actions
from tasks.environments.frozen_lake.text import ACTIONS, read_observation, write_cell
from tasks.environments.scripted_roles import TEMPLATES

_NUMBERS = {action: number for number, action in enumerate(ACTIONS)}


class FrozenLake:
    """Cross a frozen lake to the goal, which has the only reward, 1. A hole ends the episode.

    A step into the wall is not accepted and leaves the agent where it is. The task has no turn limit;
    `rollout.max_steps` truncates an episode. Training tasks start from every reachable cell of the first `maps` maps
    that `generate_maps` finds. Evaluation tasks start from the start cell of the next `maps` maps, and validation tasks
    from that of `maps` further ones. A task's id ends in gymnasium's seed of its map and the cell it starts from.

    Args:
        size: cells per side.
        maps: number of training maps, of evaluation maps, and of validation maps.
        density: probability that a cell is frozen, in random maps.
        max_holes: maps with more holes are skipped.
        slippery: gymnasium's slipping; the task's seed determines every slip.
        gamma: discount; the scripted evaluator reads it from its prompt.
        seed: 0, 1, ... for other maps in all splits.

    Raises:
        ValueError: there are too few maps of this kind.
    """

    name = "frozen_lake"
    action_format = ActionFormat(f"(?:{'|'.join(ACTIONS)})", f"one of {', '.join(ACTIONS)}")
    templates: Mapping[str, Path] = {
        **TEMPLATES,
        **{path.stem: path for path in sorted(Path(__file__).parent.glob("templates/*.j2"))},
    }
    replayable = True
    markov = True

    def __init__(
        self,
        size: int = 4,
        maps: int = 64,
        density: float = 0.75,
        max_holes: int = 6,
        slippery: bool = False,
        gamma: float = 0.8,
        seed: int = 0,
    ) -> None:
        self.gamma = gamma
        self.instructions = (
            f"Cross the lake to the goal, soon, without falling into a hole. Discount {gamma:g}."
        )
        self._world = _make_world(size, maps, density, max_holes, slippery, seed)

    def lakes(self, split: Split) -> Sequence[Lake]:
        """The maps of a split."""
        return self._world.lakes[split]

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._world.tasks[split]

    async def reset(self, task: Task) -> str:
        self._lake, self._state = self._world.places[task.task_id]
        self._random = random.Random(task.seed)
        return self._lake.observations[self._state]

    async def step(self, action: str) -> Step:
        lake, before = self._lake, self._state
        if action not in _NUMBERS:
            return Step(lake.observations[before], valid=False)
        outcomes = lake.effects[before][_NUMBERS[action]]
        effect = outcomes[0]
        if len(outcomes) > 1:
            effect = self._random.choices(outcomes, [o.probability for o in outcomes])[0]
        self._state = effect.state
        valid = action in lake.legal[before]
        if not effect.done:
            return Step(lake.observations[effect.state], effect.reward, valid=valid)
        reached = effect.reward > 0
        return Step("goal" if reached else "hole", effect.reward, done=True, success=reached, valid=valid)

    def legal_actions(self, observation: str) -> Sequence[str]:
        """Every direction except into the wall; none once the episode is over."""
        return () if observation in ("goal", "hole") else read_observation(observation).legal

    def solved_states(self, split: Split) -> Iterator[SolvedState]:
        """The reachable cells of every map.

        Raises:
            ValueError: the lake is slippery, so an action has more than one future.
        """
        for lake in self.lakes(split):
            exact = lake.q_star(self.gamma)
            best = optimal_actions(exact)
            for state in lake.reachable:
                yield SolvedState(
                    lake.observations[state],
                    [action for action, number in _NUMBERS.items() if best[state, number]],
                    {a: exact_future(lake, state, _NUMBERS[a], exact, self.gamma) for a in lake.legal[state]},
                )

    def validate(self) -> list[str]:
        """Every start can reach the goal, and no map is in two splits."""
        faults = [
            f"{self.name}: on map {lake.seed} the goal can't be reached from {write_cell(lake.cell(state))}"
            for split in self._world.lakes
            for lake in self._world.lakes[split]
            for values in [lake.q_star(self.gamma).max(axis=1)]
            for state in lake.reachable
            if values[state] <= 0
        ]
        counts = Counter(lake.rows for lakes in self._world.lakes.values() for lake in lakes)
        twice = sorted(rows for rows, count in counts.items() if count > 1)
        return faults + [f"{self.name}: a map is in two splits: {' '.join(rows)}" for rows in twice]


@dataclass(frozen=True)
class _World:
    """State shared by all episodes with the same options."""

    lakes: Mapping[Split, tuple[Lake, ...]]
    tasks: Mapping[Split, tuple[Task, ...]]
    places: Mapping[str, tuple[Lake, int]]


@lru_cache(maxsize=32)
def _make_world(size: int, maps: int, density: float, max_holes: int, slippery: bool, seed: int) -> _World:
    drawn = generate_maps(3 * maps, size, density, max_holes, seed)
    lakes = [make_lake(number, rows, slippery, max_holes) for number, rows in drawn.items()]
    # Validation maps come last, so that training and evaluation maps are those that learning.md measures.
    splits: dict[Split, tuple[Lake, ...]] = {
        "train": tuple(lakes[:maps]),
        "eval": tuple(lakes[maps : 2 * maps]),
        "validation": tuple(lakes[2 * maps :]),
    }
    tasks: dict[Split, tuple[Task, ...]] = {}
    places: dict[str, tuple[Lake, int]] = {}
    for split, members in splits.items():
        made = []
        for lake in members:
            for state in lake.reachable if split == "train" else lake.reachable[:1]:
                task_id = f"{split}/map{lake.seed}/{write_cell(lake.cell(state))}"
                stream = int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big")
                made.append(Task(task_id, split, stream))
                places[task_id] = (lake, state)
        tasks[split] = tuple(made)
    return _World(splits, tasks, places)
