"""The words of the line walk, for the word model."""

from pathlib import Path

from tasks.environments.forecast import GOAL, LONGEST, UNCLEAR
from tasks.environments.line_walk.text import ACTIONS, PIT, write_cell
from tasks.environments.word_model import write_word_model

MARKS = ":.,"


def words(cells: int) -> list[str]:
    """Every word in the prompts and texts of policy and successor, for lines of this length."""
    places = [GOAL, PIT, *(write_cell(offset) for offset in range(1 - cells, cells) if offset)]
    prompts = ["move?", "foresee", "move", "pits", "ends", "Action", "Future"]
    return [*places, *ACTIONS, *prompts, "in", UNCLEAR, *map(str, range(1, LONGEST))]


def make_word_model(folder: Path, seed: int, cells: int = 9) -> Path:
    """Write an untrained word model of the line walk and give its folder; `cells`: length of the line, which determines
    the vocabulary."""
    return write_word_model(folder, seed, words(cells), MARKS)
