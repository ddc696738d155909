"""Which proposals the policy is distilled on, and why. Where several are equally good, one is drawn."""

import random
from collections.abc import Callable, Hashable, Sequence

from schemas.rows import Critique, DistilReason, Refinement
from tasks.runtime.stage import StageFailed

DISTILLED: frozenset[DistilReason] = frozenset({"kept", "refined", "optimal", "chosen", "gain"})


def decided(row: Refinement, reason: DistilReason) -> Refinement:
    """A proposal, marked for distillation or not."""
    return row.model_copy(update={"distil": reason in DISTILLED, "distil_reason": reason})


def final_reason(
    row: Refinement, original: Critique, own: Critique | None, *, compared: bool, require_gain: bool
) -> DistilReason:
    """Why the final proposal of a state is distilled, or not.

    Args:
        row: the proposal.
        original: the critique of the action to improve.
        own: that of the proposed action; None where it was not critiqued.
        compared: whether it was chosen among different actions.
        require_gain: distil refinements of a higher probability alone.

    Raises:
        StageFailed: `require_gain`, and a verdict has no probability.
    """
    if row.status != "ok":
        return "failed"
    if row.kind == "kept":
        return "kept"
    if require_gain:
        if own is None or _probability(own) <= _probability(original):
            return "no_gain"
        # The same action's second verdict differs from its first by the futures that were drawn.
        return "gain" if row.changed or own.optimal else "unchanged"
    if own is not None and own.optimal:
        return "optimal"
    if not row.changed and not compared:
        return "unchanged"
    return "chosen" if row.kind == "chosen" else "refined"


def _probability(critique: Critique) -> float:
    if critique.yes_probability is None:
        raise StageFailed(
            f"improvement.require_gain: the verdict of {critique.critique_id} has no probability; route roles.evaluate "
            "to an engine that scores, set improvement.verdict to auto, and recompute from stage critique"
        )
    return critique.yes_probability


def most_probable(critiques: Sequence[Critique], seed: int) -> int:
    """The index of the action that is most probably optimal, drawn among equals."""
    values = [critique.yes_probability or 0.0 for critique in critiques]
    return random.Random(seed).choice([n for n, value in enumerate(values) if value == max(values)])


def cap_rows(
    rows: Sequence[Refinement], state: Callable[[Refinement], Hashable], cap: int | None, seed: int
) -> list[Refinement]:
    """The proposals, of which at most `cap` distil the same action in the same state, drawn from all that would.

    Args:
        rows: all proposals of a stage.
        state: what tells the state of a proposal.
        cap: None: no cap.
        seed: of the draw.
    """
    if cap is None:
        return list(rows)
    alike: dict[Hashable, list[str]] = {}
    for row in rows:
        if row.distil:
            alike.setdefault((state(row), row.action), []).append(row.refinement_id)
    stream = random.Random(seed)
    kept = {id_ for ids in alike.values() for id_ in stream.sample(ids, min(cap, len(ids)))}
    return [decided(row, "surplus") if row.distil and row.refinement_id not in kept else row for row in rows]
