"""The lake's words, for the word model."""

from pathlib import Path

from tasks.environments.forecast import LONGEST
from tasks.environments.frozen_lake.text import ACTIONS, GOAL, HOLE, ICE, NO_HOLE, WALL, write_cell
from tasks.environments.word_model import write_word_model


def words(size: int) -> list[str]:
    """Every word in the prompts and texts of policy and successor, for maps of this size."""
    cells = [write_cell((row, column)) for row in range(size) for column in range(size)]
    observation = ["agent", "goal", ICE, HOLE, GOAL, WALL, NO_HOLE, *cells]
    prompts = ["act", "foresee", "do", *ACTIONS, "Action:", "Future:"]
    description = ["now", "to", "then", "hole", "unclear", *(f"n{n}" for n in range(2, LONGEST + 1))]
    return [*observation, *prompts, *description]


def make_word_model(folder: Path, seed: int, size: int = 4) -> Path:
    """Write an untrained word model of the lake and give its folder; `size`: cells per side, which determine the
    vocabulary."""
    return write_word_model(folder, seed, words(size))
