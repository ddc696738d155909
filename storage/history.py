"""States rebuilt from deltas.

A transition stores only what was newly seen and done. The state before step t is the episode's observations 0..t and
actions 0..t-1, put together on reading. So storage grows linearly with an episode.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Turn:
    """One past step: what was seen, and what the model wrote in answer, without its hidden reasoning."""

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

    def without_oldest(self, count: int) -> "State":
        """The state without its `count` oldest exchanges. An exchange is an action and what was seen after it.

        The task (what was seen first) and the observation to act on stay. A line after the task says how many
        exchanges are left out. With len(turns), only the task and the last observation stay.

        Raises:
            ValueError: there are fewer exchanges.
        """
        if not 0 <= count <= len(self.turns):
            raise ValueError(f"{count} exchanges of {len(self.turns)} can't be left out")
        if not count:
            return self
        task = f"{self.turns[0].observation}\n\n{LEFT_OUT.format(what=f'{count} of the oldest exchanges')}"
        if count == len(self.turns):
            return State((), f"{task}\n\n{self.observation}")
        return State((Turn(task, self.turns[count].text), *self.turns[count + 1 :]), self.observation)

    def chars_of_oldest(self, count: int) -> int:
        """Characters that `without_oldest` leaves out."""
        seen = [turn.observation for turn in self.turns[1 : count + 1]]
        return sum(map(len, seen)) + sum(len(turn.text) for turn in self.turns[:count])


LEFT_OUT = "[{what} left out here]"
"""Replaces a part of the history in a prompt."""


def without_middle(text: str, limit: int) -> str:
    """The text without its middle, so that `limit` characters of it stay. A line says how many are left out."""
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    note = LEFT_OUT.format(what=f"{len(text) - limit} characters")
    return f"{text[:head]}\n{note}\n{text[len(text) - limit // 2 :]}"


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
    keep = set(ids)
    steps = (
        whole_episodes(transitions, keep)
        .select("episode_id", "step", "transition_id", "observation", "raw_action")
        .collect(engine="streaming")
        .sort("episode_id", "step")
    )
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


def whole_episodes(transitions: pl.LazyFrame, ids: Iterable[str]) -> pl.LazyFrame:
    """All steps of the episodes that hold the given transitions.

    A filter finds them, not a join, so that no text of other episodes is decoded.
    """
    found = transitions.filter(_one_of("transition_id", ids)).select("episode_id").unique()
    return transitions.filter(_one_of("episode_id", found.collect(engine="streaming")["episode_id"]))


def _one_of(column: str, values: Iterable[str]) -> pl.Expr:
    return pl.col(column).is_in(pl.Series(sorted(values), dtype=pl.String).implode())
