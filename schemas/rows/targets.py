"""From a replay draw to the critic's label."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.rows.base import Generation, PriorityKind, Row


class ReplaySample(Row):
    """One draw from replay, with replacement (Schaul et al. 2016)."""

    TABLE: ClassVar[str] = "replay_samples"
    sample_id: str = Field(description="run/iteration/draw number")
    transition_id: str = Field(description="-> transitions (of any iteration)")
    draw: int = Field(description="0-based draw number")
    priority: float = Field(description="p_i at the draw; unscored rows take the largest known")
    scored: bool = Field(description="whether p_i was measured before")
    priority_kind: PriorityKind | None = Field(
        None, description="what p_i measures; NULL when nothing is scored"
    )
    probability: float = Field(description="P(i), proportional to (p_i + eps)^alpha")
    weight: float = Field(description="(N P(i))^-beta divided by its maximum over the draw")


class DrawnText(BaseModel):
    """The part of a Generation that varies between draws; the rest is that of the first draw."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    seed: int = Field(description="seed of this request's own random stream")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length or error")


class BootstrapDraw(BaseModel):
    """A further draw of (a', d') at s'; columns as in BellmanTarget."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    status: str = Field(description="ok, next_action_failed or next_future_failed")
    fault: str | None = Field(None, description="what went wrong, when status is not 'ok'")
    next_thought: str | None = None
    next_action: str | None = None
    next_action_text: str | None = None
    next_future: str | None = None
    next_future_malformed: bool | None = None
    next_action_reasoning: str | None = None
    next_future_reasoning: str | None = None
    next_action_drawn: DrawnText | None = Field(None, description="provenance of a'")
    next_future_drawn: DrawnText | None = Field(None, description="provenance of d'")


class BellmanTarget(Row):
    """One language Bellman backup: d ~ B(.|s,a,r,s',a',d')."""

    TABLE: ClassVar[str] = "bellman_targets"
    VERSION: ClassVar[int] = 3
    target_id: str = Field(description="same as its sample_id")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions")
    terminal: bool = Field(description="done: written from r and s' alone, without a' and d'")
    next_thought: str | None = Field(None, description="thought of a'")
    next_action: str | None = Field(None, description="environment action of a' ~ pi(.|s')")
    next_action_text: str | None = Field(None, description="a' as the model wrote it")
    next_future: str | None = Field(None, description="d' ~ M_target(.|s',a')")
    next_future_malformed: bool | None = Field(
        None, description="d' lacked its format, or a limit cut it; the backup reads it all the same"
    )
    thought: str = Field(description="the backup's chain of thought")
    description: str = Field(description="d, the future seen from (s,a)")
    malformed: bool = Field(description="the backup lacked its format, or a limit cut it; not trained on")
    next_action_generation: Generation | None = Field(None, description="provenance of a'")
    next_future_generation: Generation | None = Field(None, description="provenance of d'")
    generation: Generation | None = Field(None, description="provenance of thought and description")
    other_draws: list[BootstrapDraw] | None = Field(
        None, description="draws 2 to J of (a', d') (backup.draws), for log p_B alone; NULL: there are none"
    )
    reasoning: str | None = Field(None, description="the backup's hidden chain of thought, before correction")
    next_action_reasoning: str | None = Field(None, description="that of a'")
    next_future_reasoning: str | None = Field(None, description="that of d'")


class CorrectedTarget(Row):
    """A target whose thought no longer asserts what the student can't see (paper, appendix B.2)."""

    TABLE: ClassVar[str] = "corrected_targets"
    VERSION: ClassVar[int] = 4
    corrected_id: str = Field(description="same as its target_id")
    target_id: str = Field(description="-> bellman_targets")
    transition_id: str = Field(description="-> transitions")
    verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] = Field(
        description="clean: nothing to correct; rewritten: a rewrite passed; the others: no rewrite passed. The worse "
        "one of visible and hidden thought"
    )  # fmt: skip
    thought_before: str = Field(description="the backup's thought")
    thought: str = Field(description="the thought trained on; empty when dropped")
    description: str = Field(description="copied from the target, never regenerated")
    leak_before: float = Field(description="share of the thought's words inside leaks, before correction")
    leak_after: float = Field(description="the same for the thought kept")
    leaks: list[str] = Field(description="leaking passages found before correction")
    attempts: int = Field(description="rewrites tried")
    backup_logprobs: list[float] | None = Field(
        None, description="log p_B of the description's tokens under the backup prompt; NULL: the engine can't score, "
        "or nothing reads them (replay.alpha 0, loss sft)"
    )  # fmt: skip
    generation: Generation | None = Field(None, description="provenance of the last rewrite")
    backup_draw_logprobs: list[float] | None = Field(
        None, description="log p_B of the whole description under the backup prompt of each usable (a', d'), the first "
        "included; NULL: there is only one (sum backup_logprobs), or the engine can't score"
    )  # fmt: skip
    backup_top_ids: list[list[int]] | None = Field(
        None, description="token_kl: the most likely tokens at each description position under the backup prompt, most "
        "likely first; NULL: backup.loss is sft"
    )  # fmt: skip
    backup_top_logprobs: list[list[float]] | None = Field(
        None, description="their log-probabilities (nats), before renormalising"
    )
    discount_next: float | None = Field(
        None, description="share of the description's content words that the next observation and r have and d' lacks; "
        "NULL: terminal, or no content word"
    )  # fmt: skip
    discount_future: float | None = Field(
        None, description="share that d' has and the next observation and r lack"
    )
    discount_both: float | None = Field(None, description="share that both have; the rest is in neither")
    reasoning: str | None = Field(None, description="hidden chain of thought of the last rewrite")
    dropped_turns: int | None = Field(
        None, description="oldest exchanges left out of the backup prompt that it was scored under; NULL: not scored"
    )  # fmt: skip
    dropped_chars: int | None = Field(
        None, description="characters left out of that prompt, those exchanges included"
    )
    label_reasoning: str | None = Field(
        None, description="the backup's hidden chain of thought that the label begins with, after correction; NULL: "
        "roles.predict does not think, or nothing was left"
    )  # fmt: skip
    reasoning_verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] | None = Field(
        None, description="correction of the hidden chain of thought; NULL: none was needed"
    )
    reasoning_leak_before: float | None = Field(
        None, description="share of its words inside leaks, before correction"
    )
    reasoning_leak_after: float | None = Field(None, description="the same for what is trained on")
    reasoning_generation: Generation | None = Field(None, description="provenance of its last rewrite")


class Priority(Row):
    """The critic's loss on one drawn transition, scored once before the stage's first update. Where no target of it
    could be scored, `status` says why, and the priority is half of the one it was drawn with."""

    TABLE: ClassVar[str] = "priorities"
    VERSION: ClassVar[int] = 3
    transition_id: str = Field(description="-> transitions")
    priority: float = Field(
        description="p_i = max(0, mean log p_B - log p_theta), or the NLL (priority_kind); where status is not 'ok', "
        "half of the priority it was drawn with, or of the largest measured in this iteration if that is less"
    )  # fmt: skip
    priority_kind: PriorityKind = Field(
        description="kl_bound, or nll where B has no log-probabilities; that of this iteration's scores, also where "
        "status is not 'ok'"
    )  # fmt: skip
    critic_logprob: float | None = Field(
        None, description="mean log p_theta over description tokens; NULL: not scored"
    )
    backup_logprob: float | None = Field(
        None, description="mean log p_B over description tokens; with several draws, of the log of the mean p_B over "
        "the draws"
    )  # fmt: skip
    description_tokens: int = Field(description="tokens that the means are taken over")
    backup_draws: int | None = Field(
        None, description="largest number of draws of (a', d') that the p_B of a target is averaged over: 1 for a "
        "terminal one, otherwise up to J (backup.draws); NULL: priority_kind is nll"
    )  # fmt: skip
