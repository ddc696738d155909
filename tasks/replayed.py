"""Replayed transitions with their states, as the stages after the draw read them."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from storage.history import State, rebuild_states
from tasks.stage import Inputs


@dataclass(frozen=True)
class Replayed:
    """One transition (s, a, r, s', done) with s rebuilt."""

    transition_id: str
    state: State
    text: str  # a, as the model wrote it
    thought: str
    action: str
    action_valid: bool
    reward: float
    next_observation: str
    done: bool
    task_id: str

    @property
    def next_state(self) -> State:
        """s'."""
        return self.state.after(self.text, self.next_observation)


def load_replayed(inputs: Inputs, ids: Iterable[str]) -> dict[str, Replayed]:
    """The given transitions by id; only rows of split 'train' are read."""
    wanted = sorted(set(ids))
    train = inputs.scan("transitions").filter(pl.col("split") == "train")
    states = rebuild_states(train, wanted)
    rows = (
        train.filter(pl.col("transition_id").is_in(wanted))
        .select(
            "transition_id", pl.col("raw_action").alias("text"), "thought", "action", "action_valid", "reward",
            "next_observation", "done", "task_id",
        )
        .collect()
    )  # fmt: skip
    return {
        row["transition_id"]: Replayed(state=states[row["transition_id"]], **row)
        for row in rows.iter_rows(named=True)
    }
