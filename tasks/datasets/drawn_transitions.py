"""DrawnTransition transitions with their states, as the stages after the draw read them."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from storage.history import State, rebuild_states, whole_episodes
from tasks.runtime.stage import Inputs


@dataclass(frozen=True)
class DrawnTransition:
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


def load_drawn(inputs: Inputs, ids: Iterable[str]) -> dict[str, DrawnTransition]:
    """The given transitions by id; only rows of split 'train' are read."""
    wanted = set(ids)
    train = inputs.scan("transitions").filter(pl.col("split") == "train")
    episodes = (
        whole_episodes(train, wanted)
        .select(
            "transition_id", "episode_id", "step", "observation", "raw_action", "thought", "action", "action_valid",
            "reward", "next_observation", "done", "task_id",
        )
        .collect(engine="streaming")
    )  # fmt: skip
    states = rebuild_states(episodes.lazy(), wanted)
    rows = (
        episodes.filter(pl.col("transition_id").is_in(list(wanted)))
        .drop("episode_id", "step", "observation")
        .rename({"raw_action": "text"})
    )
    return {
        row["transition_id"]: DrawnTransition(state=states[row["transition_id"]], **row)
        for row in rows.iter_rows(named=True)
    }
