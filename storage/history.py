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

    def without_oldest(self, count: int) -> "State":
        """The state without its `count` oldest exchanges, an exchange being an action and what was seen after it.

        The task (what was seen first) and the observation to act on stay; a line after the task says how many
        exchanges are left out. 0 leaves the state as it is, len(turns) leaves task and last observation alone.

        Raises:
            ValueError: there are not so many.
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
"""Stands in a prompt where something of the history does not."""


def without_middle(text: str, limit: int) -> str:
    """The text with its middle left out, so that `limit` characters of it stay; a line says how many do not."""
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

    They are found by a filter, not by a join, so that no text of other episodes is decoded.
    """
    found = transitions.filter(_one_of("transition_id", ids)).select("episode_id").unique()
    return transitions.filter(_one_of("episode_id", found.collect(engine="streaming")["episode_id"]))


def _one_of(column: str, values: Iterable[str]) -> pl.Expr:
    return pl.col(column).is_in(pl.Series(sorted(values), dtype=pl.String).implode())
