"""The backup, evaluator, refiner and corrector of the frozen lake as rules. `evaluator` is the same with a graded
verdict, and `backup` the same with log-probabilities of descriptions."""

from tasks.environments.frozen_lake.text import (
    Foreseen,
    one_step_earlier,
    read_description,
    read_future,
    read_observation,
    write_cell,
)
from tasks.environments.scripted_roles import Backup, Evaluator, Rules, field, fields


def _back_up(prompt: str) -> Foreseen:
    """From r if the episode ended; else the next cell and the next future, one step longer."""
    foreseen = fields(prompt, "next future")
    if not foreseen:
        return Foreseen("goal" if float(field(prompt, "reward")) > 0 else "hole", 1, None)
    cell = write_cell(read_observation(field(prompt, "next state")).agent)
    return one_step_earlier(cell, read_description(foreseen[0]))


rules = Rules(read_observation, read_future, _back_up)
evaluator = Evaluator(rules)
backup = Backup(rules)
