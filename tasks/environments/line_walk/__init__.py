"""A walk on a line to a goal between or past two pits, as text that a pretrained language model learns in hours on a
CPU, with exact action values.

`text` holds the wording, `lines` the dynamics and the splits, `measures` what is exact, and `roles` the scripted
backup, evaluator, refiner and corrector.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

from schemas.rows import Split
from tasks.environments.base import ActionFormat, SolvedState, Step, Task, any_of
from tasks.environments.forecast import GOAL
from tasks.environments.line_walk.lines import Line, split_lines
from tasks.environments.line_walk.measures import best_actions, exact_future
from tasks.environments.line_walk.text import ACTIONS, PIT, read_observation
from tasks.environments.scripted_roles import TEMPLATES


class LineWalk:
    """Walk to the goal, one or two cells a move, without stepping into a pit. The goal has the only reward, 1.

    A move off the line is not accepted and leaves the agent where it is. The task has no turn limit;
    `rollout.max_steps` truncates an episode (8 for nine cells, 10 for fifteen). Every line with two pits that are not
    next to each other is in one of the splits; lines with the same pattern of goal and pits, and their mirror images,
    are in the same one. Every start of a line is a task.

    Args:
        cells: length of the line.
        moves: least moves to the goal from a start of an evaluation or validation task.
        train_moves: the same for training tasks; None: `moves`.
        held_out: patterns of the split eval, and of the split validation.
        gamma: discount; the scripted evaluator reads it from its prompt.
        seed: of the draw of patterns.

    Raises:
        ValueError: a split would have no line.
    """

    name = "line_walk"
    action_format = ActionFormat(any_of(ACTIONS), f"one of {', '.join(ACTIONS)}")
    templates: Mapping[str, Path] = {
        **TEMPLATES,
        **{path.stem: path for path in sorted(Path(__file__).parent.glob("templates/*.j2"))},
    }
    replayable = True
    markov = True

    def __init__(
        self,
        cells: int = 9,
        moves: int = 2,
        train_moves: int | None = None,
        held_out: int = 6,
        gamma: float = 0.8,
        seed: int = 0,
    ) -> None:
        self.gamma = gamma
        self.instructions = f"Walk to the goal in few moves. Never step into a pit. Discount {gamma:g}."
        near = moves if train_moves is None else train_moves
        self._world = _make_world(cells, moves, near, held_out, seed)

    def lines(self, split: str) -> Sequence[Line]:
        """The lines of a split: train, eval or validation."""
        return self._world.lines[split]

    def tasks(self, split: str) -> Sequence[Task]:
        return self._world.tasks[split]

    async def reset(self, task: Task) -> str:
        self._line, self._state = self._world.starts[task.task_id]
        return self._line.observation(self._state)

    async def step(self, action: str) -> Step:
        line, before = self._line, self._state
        after = line.leads_to(before, ACTIONS.index(action)) if action in ACTIONS else before
        if after == before:
            return Step(line.observation(before), valid=False)
        self._state = after
        if after == line.goal:
            return Step(GOAL, reward=1.0, done=True, success=True)
        if after in line.pits:
            return Step(PIT, done=True)
        return Step(line.observation(after))

    def legal_actions(self, observation: str) -> Sequence[str]:
        """Every move that stays on the line; none once the episode is over."""
        return () if observation in (GOAL, PIT) else read_observation(observation).legal

    def solved_states(self, split: Split) -> Iterator[SolvedState]:
        """Every state of every line."""
        for line in self.lines(split):
            for state in line.states:
                observation = line.observation(state)
                yield SolvedState(
                    observation,
                    best_actions(line, state, self.gamma),
                    {
                        action: exact_future(line, state, ACTIONS.index(action), self.gamma)
                        for action in self.legal_actions(observation)
                    },
                )

    def validate(self) -> list[str]:
        """Every state can reach the goal, and no pattern is in two splits."""
        faults = [
            f"{self.name}: on {line.name} the goal can't be reached from cell {state}"
            for lines in self._world.lines.values()
            for line in lines
            for values in [line.q_star(self.gamma).max(axis=1)]
            for state in line.states
            if values[state] <= 0
        ]
        patterns = [{line.pattern for line in lines} for lines in self._world.lines.values()]
        if sum(map(len, patterns)) > len(set.union(*patterns)):
            faults.append(f"{self.name}: a pattern of goal and pits is in two splits")
        return faults


@dataclass(frozen=True)
class _World:
    """State shared by all episodes with the same options."""

    lines: Mapping[str, Sequence[Line]]
    tasks: Mapping[str, Sequence[Task]]
    starts: Mapping[str, tuple[Line, int]]


@lru_cache(maxsize=32)
def _make_world(cells: int, moves: int, train_moves: int, held_out: int, seed: int) -> _World:
    lines = split_lines(cells, moves, train_moves, held_out, seed)
    tasks: dict[str, list[Task]] = {split: [] for split in lines}
    starts: dict[str, tuple[Line, int]] = {}
    for split in lines:
        for line in lines[split]:
            for start in line.starts:
                task_id = f"{split}/{line.name}/from{start}"
                tasks[split].append(Task(task_id, cast(Split, split), len(starts)))
                starts[task_id] = line, start
    return _World(lines, tasks, starts)
