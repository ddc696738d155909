"""The stored texts behind one id, in order, each with the prompt that its role read.

Prompts are not stored. They are rendered again from the tables, with the configuration that the row's iteration was
begun with. Where a template has changed since, its prompt says so.
"""

from collections.abc import Iterator, Mapping

from schemas.rows import (
    BellmanTarget,
    Critique,
    Episode,
    Future,
    Refinement,
    Row,
    SampledAction,
    TdTarget,
    Transition,
)
from tasks.export.shown_backup import of_sampled, of_target, of_td_target
from tasks.export.shown_improvement import of_critique, of_future, of_refinement, tried_before
from tasks.export.stored import Part, Stored, UnknownId, fault, outcome, prompt_part, written
from tasks.prompting.role_prompts import policy_prompt

KEYS: Mapping[type[Row], str] = {
    Episode: "episode_id", Transition: "transition_id", BellmanTarget: "target_id", Critique: "critique_id",
    Future: "future_id", Refinement: "refinement_id", SampledAction: "action_id", TdTarget: "target_id",
}  # fmt: skip
"""The tables whose rows can be shown, and their ids. A replay sample has the id of its target."""


def show(stored: Stored, row_id: str) -> Iterator[Part]:
    """The texts behind an id, in the order in which they came about. Of a refinement they begin with how the actions
    before it were judged.

    Args:
        stored: reads the rows.
        row_id: of an episode, a transition, a replay sample or its target, a critique, a future, a refinement or a
            sampled action.

    Raises:
        UnknownId: no current row has it, or the iteration has lost its configuration.
    """
    for model, key in KEYS.items():
        for row in stored.rows(model, key, row_id):
            before = tried_before(stored, row) if isinstance(row, Refinement) else []
            return (part for one in (*before, row) for part in texts_of(stored, one))
    raise UnknownId(
        f"no row has the id '{row_id}'; ids are those of {', '.join(dict.fromkeys(KEYS.values()))} or sample_id: "
        '`nlac show --failed` lists some, and so does `nlac sql "select episode_id from episodes"`'
    )


def texts_of(stored: Stored, row: Row) -> Iterator[Part]:
    """The texts behind a row of a table in KEYS."""
    parts = {
        Episode: _of_episode, Transition: _of_transition, BellmanTarget: of_target,
        Critique: of_critique, Future: of_future, Refinement: of_refinement, SampledAction: of_sampled,
        TdTarget: of_td_target,
    }  # fmt: skip
    return parts[type(row)](stored, row)  # type: ignore[operator,no-any-return]


def _of_episode(stored: Stored, row: Episode) -> Iterator[Part]:
    """An episode: the first prompt of its policy, then each step. A later prompt goes on with what follows."""
    steps = sorted(stored.rows(Transition, "episode_id", row.episode_id), key=lambda step: step.step)
    ending = "success" if row.success else "done" if row.done else "truncated"
    yield Part(
        "episode",
        f"{row.environment}, task {row.task_id}, split {row.split}: {ending}, reward {row.reward:g}",
    )
    yield from fault(row)
    for step in steps:
        if step.step == 0:
            yield from _of_transition(stored, step)
        else:
            yield from written(f"step {step.step}: policy writes", step.raw_action, step.reasoning)
            yield outcome(step)


def _of_transition(stored: Stored, row: Transition) -> Iterator[Part]:
    """A step of an episode."""
    if row.generation is not None:
        yield prompt_part("policy", policy_prompt(stored.prompts(row), stored.state(row)), row.generation)
    else:
        yield Part(f"step {row.step}: observation", row.observation)
    yield from written(f"step {row.step}: policy writes", row.raw_action, row.reasoning)
    yield outcome(row)
    yield from fault(row)
