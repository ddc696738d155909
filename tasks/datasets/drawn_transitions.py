"""Drawn transitions with their states, as the stages after the draw read them."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from schemas.rows import Generation, ReplaySample
from storage.history import State, rebuild_states, whole_episodes
from storage.replay import draw_replay, replay_use
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, StageFailed
from tasks.seeding import derive_seed


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
    reasoning: str | None = None  # the hidden chain of thought behind a
    generation: Generation | None = None  # of a

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
            "reasoning", "generation", "reward", "next_observation", "done", "task_id",
        )
        .collect(engine="streaming")
    )  # fmt: skip
    states = rebuild_states(episodes.lazy(), wanted)
    rows = (
        episodes.filter(pl.col("transition_id").is_in(list(wanted)))
        .drop("episode_id", "step", "observation")
        .rename({"raw_action": "text"})
    )
    found = {}
    for row in rows.iter_rows(named=True):
        made = row.pop("generation")
        generation = Generation.model_validate(made) if made else None
        found[row["transition_id"]] = DrawnTransition(
            state=states[row["transition_id"]], generation=generation, **row
        )
    return found


EXCHANGES = 10.0
"""A text costs an engine about as much to write as so many past exchanges to read."""


class DrawnCosts:
    """Estimates what requests at transitions cost, by how far their episodes have come: a prompt holds the past.

    Args:
        inputs: with table `transitions`, read when a cost is asked for.
        ids: of the transitions.
    """

    def __init__(self, inputs: Inputs, ids: Iterable[str]) -> None:
        self._inputs, self._ids = inputs, set(ids)

    @cached_property
    def _places(self) -> dict[str, tuple[int, bool]]:
        found = self._inputs.scan("transitions").select("transition_id", "step", "done")
        rows = found.filter(pl.col("transition_id").is_in(list(self._ids))).collect().iter_rows()
        return {transition_id: (step, done) for transition_id, step, done in rows}

    def ends(self, transition_id: str) -> bool:
        """Whether a transition ends its episode."""
        return self._places[transition_id][1]

    def text(self, transition_id: str) -> float:
        """The cost of a text at a transition; 1 in an episode's first state."""
        return 1.0 + self._places[transition_id][0] / EXCHANGES


def measure_replay(ctx: StageContext, samples: list[ReplaySample]) -> dict[str, float]:
    """Metrics of the use of replay, over the transitions that can be drawn now: how often one has been drawn so far on
    average (`replay_ratio`: backups per transition), and the share never drawn (`never_drawn_share`)."""
    drawn = [pl.LazyFrame({"transition_id": [sample.transition_id for sample in samples]})]
    if ctx.inputs.tables["replay_samples"]:
        drawn.append(ctx.inputs.scan("replay_samples").select("transition_id"))
    ratio, never = replay_use(ctx.inputs.scan("transitions"), pl.concat(drawn))
    return {"replay_ratio": ratio, "never_drawn_share": never}


def draw_samples(ctx: StageContext) -> list[ReplaySample]:
    """The iteration's replay draw, as rows.

    Raises:
        StageFailed: there is nothing to draw from.
    """
    section = ctx.config.replay
    try:
        draw = draw_replay(
            ctx.inputs.scan("transitions"),
            ctx.inputs.scan("priorities") if ctx.inputs.tables.get("priorities") else None,
            count=section.transitions,
            alpha=section.alpha,
            beta=section.beta_at(ctx.iteration),
            epsilon=section.epsilon,
            seed=derive_seed(ctx.config.seed, "replay", ctx.iteration),
        )
    except ValueError as error:
        raise StageFailed(f'{error}; look at: nlac sql "select status, error from episodes"') from error
    return [
        ReplaySample(
            run=ctx.config.run,
            iteration=ctx.iteration,
            sample_id=f"{ctx.config.run}/{ctx.iteration:05d}/{number:06d}",
            transition_id=draw.ids[number],
            draw=number,
            priority=draw.priority[number],
            scored=draw.scored[number],
            priority_kind=draw.kind if draw.scored[number] else None,
            probability=draw.probability[number],
            weight=draw.weight[number],
        )
        for number in range(section.transitions)
    ]


def choose_states(ctx: StageContext, samples: list[ReplaySample]) -> list[ReplaySample]:
    """The draws in whose states an action is improved, in drawn order: at most `improvement.states` of them, drawn at
    random, each transition at most once."""
    first = list({s.transition_id: s for s in reversed(samples)}.values())[::-1]
    stream = random.Random(derive_seed(ctx.config.seed, "improvement-states", ctx.iteration))
    chosen = stream.sample(first, min(ctx.config.improvement.states, len(first)))
    return sorted(chosen, key=lambda s: s.draw)
