"""States rebuilt from deltas.

A transition stores only what was newly seen and done; the state before step t is the episode's
observations 0..t and actions 0..t-1. Storage so grows linearly with an episode, and the state is assembled
on reading.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Turn:
    """One past step: what was seen, and what the model wrote in answer (its hidden reasoning left out)."""

    observation: str
    text: str


@dataclass(frozen=True)
class State:
    """s_t: the past turns, and the observation to act on."""

    turns: tuple[Turn, ...]
    observation: str

    def after(self, text: str, observation: str) -> "State":
        """s_{t+1}, when `text` was written and `observation` came back."""
        return State((*self.turns, Turn(self.observation, text)), observation)


def rebuild_states(transitions: pl.LazyFrame, ids: Iterable[str]) -> dict[str, State]:
    """The state in which each of the given transitions acted.

    Args:
        transitions: table `transitions`, holding at least the whole episodes of the transitions asked for.
        ids: transition ids.

    Returns:
        transition_id -> state. One pass over the episodes' rows, in time linear in their number.

    Raises:
        KeyError: an id is not in the table, or steps before it are missing from its episode.
    """
    wanted = pl.LazyFrame({"transition_id": sorted(set(ids))}, schema={"transition_id": pl.String})
    episodes = transitions.join(wanted, on="transition_id", how="semi").select("episode_id").unique()
    steps = (
        transitions.join(episodes, on="episode_id", how="semi")
        .select("episode_id", "step", "transition_id", "observation", "raw_action")
        .sort("episode_id", "step")
        .collect()
    )
    keep = set(wanted.collect()["transition_id"])
    states: dict[str, State] = {}
    episode: str | None = None
    past: list[Turn] = []
    for episode_id, step, transition_id, observation, text in steps.iter_rows():
        if episode_id != episode:
            episode, past = episode_id, []
        if step != len(past):
            raise KeyError(
                f"{episode_id}: step {len(past)} is missing, so the state of {transition_id} can't be rebuilt"
            )
        if transition_id in keep:
            states[transition_id] = State(tuple(past), observation)
        past.append(Turn(observation, text))
    missing = keep - states.keys()
    if missing:
        raise KeyError(f"transition {min(missing)} is not in the table")
    return states
