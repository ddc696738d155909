"""Futures, critiques and refinements."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows.base import Generation, Row


class Future(Row):
    """One future of an action: d_j ~ M_theta(.|s,a) of the successor, or a Monte-Carlo rollout (self_distillation)."""

    TABLE: ClassVar[str] = "futures"
    VERSION: ClassVar[int] = 3
    future_id: str = Field(description="critique_id/f/number")
    critique_id: str = Field(description="-> critiques (the critique that reads it)")
    thought: str = Field(description="the successor's reasoning; empty for a rollout")
    description: str = Field(description="the predicted future, or what happened in the rollout")
    malformed: bool = Field(description="it lacked its format, or a limit cut it; read all the same")
    source: Literal["successor", "rollout", "none"] | None = Field(
        None, description="successor: predicted; rollout: a Monte-Carlo rollout of the policy; none: nothing is "
        "foreseen (refiner_alone); NULL in older files: predicted"
    )  # fmt: skip
    policy_version: str | None = Field(None, description="the policy that played a rollout")
    generation: Generation | None = Field(None, description="provenance; NULL for a rollout")
    reasoning: str | None = Field(None, description="the successor's hidden chain of thought, in no prompt")


class Critique(Row):
    """One critique of one action: q ~ E(.|s,a,d1..dk)."""

    TABLE: ClassVar[str] = "critiques"
    VERSION: ClassVar[int] = 3
    critique_id: str = Field(
        description="sample_id/c/round; with algorithms nlql and nlrl, sample_id/c/0/number of the action"
    )
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions (whose state s is acted in)")
    round: int = Field(description="0: of the action to improve; j: of the j-th refinement")
    action_source: Literal["fresh", "replayed", "refined"] = Field(
        description="where the critiqued action comes from"
    )
    action_text: str = Field(description="the critiqued action, whole text")
    thought: str = Field(description="its thought")
    action: str = Field(description="its environment action")
    optimal: bool | None = Field(
        None,
        description="the verdict; NULL if it can't be parsed, and with algorithm nlrl. Scored: yes_probability > 0.5",
    )
    critique: str = Field(
        description="why, and how to improve; with algorithm nlrl, what the rollouts amount to; empty with nlql"
    )
    yes_probability: float | None = Field(
        None, description="scored verdict: p(yes) / (p(yes) + p(no)); NULL for a written one"
    )
    action_generation: Generation | None = Field(None, description="provenance of the critiqued action")
    generation: Generation | None = Field(None, description="provenance of the critique")
    reasoning: str | None = Field(
        None, description="the evaluator's hidden chain of thought, in no prompt again"
    )
    action_reasoning: str | None = Field(
        None, description="that of a fresh action; the evaluator does not see it"
    )


DistilReason = Literal[
    "kept", "refined", "optimal", "chosen", "gain",
    "not_final", "failed", "unchanged", "no_gain", "surplus",
]  # fmt: skip
"""Why a proposal is distilled (the first line), or not."""


class Refinement(Row):
    """One proposal to improve an action. `distil` marks the one row per sample that the policy is trained on."""

    TABLE: ClassVar[str] = "refinements"
    VERSION: ClassVar[int] = 3
    refinement_id: str = Field(description="sample_id/r/round")
    critique_id: str = Field(description="-> critiques (the critique it answers)")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions (whose state s is acted in)")
    round: int = Field(description="1..m; m+1 is the final choice among the tried actions")
    kind: Literal["kept", "refined", "chosen"] = Field(
        description="kept: the action itself, called optimal; refined: rewritten; chosen: picked among the tried "
        "actions"
    )  # fmt: skip
    action_text: str = Field(description="the refiner's whole text (or the kept action's)")
    thought_before: str = Field(description="its thought as written")
    thought: str = Field(description="the thought distilled; empty when dropped")
    action: str = Field(description="the environment action")
    valid: bool = Field(description="the environment would accept it")
    changed: bool = Field(description="the environment action differs from that of the action to improve")
    verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] | None = Field(
        None, description="correction of the thought, the worse one of visible and hidden; NULL when none was needed "
        "or reached"
    )  # fmt: skip
    leak_before: float | None = Field(None, description="share of the thought's words inside leaks, before")
    leak_after: float | None = Field(None, description="the same for the thought kept")
    distil: bool = Field(description="goes into policy distillation")
    distil_reason: DistilReason | None = Field(
        None, description="why. Distilled: kept (called optimal as it was), refined (another action, not judged "
        "again), optimal (called optimal when judged again), chosen (picked among different actions), gain (more "
        "probably optimal than the original). Not: not_final (an earlier proposal), failed (see status), unchanged "
        "(the action that was called not optimal), no_gain, surplus (improvement.max_rows_per_action). NULL in older "
        "files"
    )  # fmt: skip
    generation: Generation | None = Field(None, description="provenance of the refined action")
    correction_generation: Generation | None = Field(None, description="provenance of the corrected thought")
    reasoning: str | None = Field(
        None, description="the refiner's hidden chain of thought, before correction"
    )
    correction_reasoning: str | None = Field(None, description="that of the thought's last rewrite")
    label_reasoning: str | None = Field(
        None, description="the hidden chain of thought distilled before the action, after correction; NULL: the policy "
        "does not think, or nothing was left"
    )  # fmt: skip
    reasoning_verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] | None = Field(
        None, description="correction of the hidden chain of thought; NULL: none was needed"
    )
    reasoning_leak_before: float | None = Field(
        None, description="share of its words inside leaks, before correction"
    )
    reasoning_leak_after: float | None = Field(None, description="the same for what is trained on")
    reasoning_generation: Generation | None = Field(None, description="provenance of its last rewrite")
