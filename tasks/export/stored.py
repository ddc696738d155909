"""Rows by their ids, and what is rebuilt from them: states, prompts, and texts under titles."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import duckdb
import polars as pl

from schemas.rows import Generation, Row, Transition
from storage.history import State, rebuild_states
from storage.store import Store
from tasks.chat.messages import Message
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments import make_environment
from tasks.pipeline.iterations import frozen_config
from tasks.prompting.rendering import PromptRenderer
from tasks.prompting.truncation import Prompt

R = TypeVar("R", bound=Row)


class UnknownId(Exception):
    """No row has this id, or its prompts can't be rendered again; the message says what to do."""


@dataclass(frozen=True)
class Part:
    """One text, under a title. Of a prompt, `messages` is what was sent."""

    title: str
    text: str
    messages: tuple[Message, ...] = ()


class Stored:
    """Reads current rows, and renders prompts with the configuration of a row's iteration.

    Args:
        store: the artifact store.
        database: SQL over it, from `storage.sql.views.connect`.
    """

    def __init__(self, store: Store, database: duckdb.DuckDBPyConnection) -> None:
        self._store, self._database = store, database
        self._renderer = lru_cache(self._new_renderer)

    def rows(self, model: type[R], column: str, value: str) -> list[R]:
        """Rows of a table by a column's value, in the order of the stage that wrote them."""
        query = f"select * from {model.TABLE} where {column} = ?"
        found = self._database.sql(query, params=[value]).to_arrow_table().to_pylist()
        return [model.model_validate(row) for row in found]

    def prompts(self, row: Row) -> PromptRenderer:
        return self._renderer(row.run, row.iteration)

    def _new_renderer(self, run: str, iteration: int) -> PromptRenderer:
        config = frozen_config(self._store, run, iteration)
        if config is None:
            raise UnknownId(
                f"iteration {iteration} of run '{run}' has no config.yaml, which prompts are rendered with; an import "
                "has none until the iteration is run"
            )
        return PromptRenderer(config, make_environment(config.environment))

    def state(self, row: Transition) -> State:
        steps = "select episode_id, step, transition_id, observation, raw_action from transitions where episode_id = ?"
        episode = pl.from_arrow(self._database.sql(steps, params=[row.episode_id]).to_arrow_table())
        return rebuild_states(episode.lazy(), [row.transition_id])[row.transition_id]  # type: ignore[union-attr]

    def drawn(self, transition_id: str) -> DrawnTransition:
        (row,) = self.rows(Transition, "transition_id", transition_id)
        shared: dict[str, Any] = {name: v for name, v in row if name in DrawnTransition.__dataclass_fields__}
        return DrawnTransition(state=self.state(row), text=row.raw_action, **shared)


def prompt_part(role: str, read: Prompt, made: Generation | None) -> Part:
    changed = made is not None and made.prompt_digest != read.digest
    note = " (its template has changed since: this is today's)" if changed else ""
    version = f", played by {made.model_version}" if made is not None else ""
    text = "\n".join(f"[{message['role']}]\n{message['content']}" for message in read.messages)
    return Part(f"{role} reads{version}{note}", text, read.messages)


def written(title: str, text: str, reasoning: str | None) -> Iterator[Part]:
    if reasoning:
        yield Part(f"hidden chain of thought before: {title}", reasoning)
    yield Part(title, text)


def outcome(row: Transition) -> Part:
    taken = row.action if row.action_valid else f"{row.action!r}, which is not valid"
    end = ", done" if row.done else ", truncated" if row.truncated else ""
    return Part(f"step {row.step}: {taken}", f"-> {row.next_observation}\nreward {row.reward:g}{end}")


def future_text(thought: str, description: str) -> str:
    return f"{thought}\n{description}".strip()


def fault(row: Row) -> Iterator[Part]:
    if row.status != "ok":
        yield Part(f"status {row.status}", row.error or "")
