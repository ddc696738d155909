"""Training examples from tables: what the critic and the policy are fine-tuned on, and under which prompt."""

import random
from collections.abc import Iterable
from dataclasses import replace

from schemas.rows import CorrectedTarget, Refinement, ReplaySample
from storage.history import State
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.datasets.example import Example, SoftTargets
from tasks.prompting.native_calls import action_message
from tasks.prompting.role_prompts import policy_prompt, predict_prompt, whole_label
from tasks.runtime.context import StageContext
from tasks.runtime.stage import StageFailed
from tasks.seeding import derive_seed
from tasks.text.correction import label_reasoning
from tasks.text.formats import future_segments, write_action


def critic_examples(
    ctx: StageContext,
    targets: Iterable[CorrectedTarget],
    samples: Iterable[ReplaySample],
    transitions: dict[str, DrawnTransition],
) -> list[Example]:
    """Usable corrected targets under the predict prompt, which shows only (s, a); weighted by the replay
    draw.

    Raises:
        StageFailed: `backup.loss` is token_kl, and a label has no top-k log-probabilities.
    """
    weights = {s.sample_id: s.weight for s in samples}
    usable = [t for t in targets if t.status == "ok"]
    labels = list(usable)
    if ctx.config.backup.shuffle_labels:
        random.Random(derive_seed(ctx.config.seed, "shuffled-labels", ctx.iteration)).shuffle(labels)
    examples = []
    for target, label in zip(usable, labels, strict=True):
        transition = transitions[target.transition_id]
        segments = future_segments(label.thought, label.description)
        shown = whole_label(segments, label.label_reasoning)
        prompt = predict_prompt(ctx.prompts, transition.state, transition.text, label=shown, trains=True)
        examples.append(
            Example(
                row_id=target.corrected_id,
                role="critic",
                messages=prompt.messages,
                segments=segments,
                reasoning=label.label_reasoning,
                dropped=prompt.dropped,
                scored_segment=1,
                weight=weights[target.target_id],
                soft=_soft_targets(label) if ctx.config.backup.loss == "token_kl" else None,
            )
        )
    return examples


def _soft_targets(label: CorrectedTarget) -> SoftTargets:
    if label.backup_top_ids is None or label.backup_top_logprobs is None:
        raise StageFailed(
            f"backup.loss: token_kl needs top-k log-probabilities, which label {label.corrected_id} lacks; recompute "
            "cot-correction with this configuration and force=true (roles.bootstrap on an engine that gives them), or "
            "set backup.loss to sft"
        )
    return SoftTargets(tuple(map(tuple, label.backup_top_ids)), tuple(map(tuple, label.backup_top_logprobs)))


def refined_examples(
    ctx: StageContext, refinements: Iterable[Refinement], transitions: dict[str, DrawnTransition]
) -> list[Example]:
    """Refined actions marked for distillation, under the plain policy prompt."""
    return [
        policy_example(
            ctx, r.refinement_id, transitions[r.transition_id], r.thought, r.action, r.label_reasoning
        )
        for r in refinements
        if r.distil
    ]


def drawn_examples(ctx: StageContext, transitions: Iterable[DrawnTransition]) -> list[Example]:
    """Valid replayed actions: they stand in for policy rows while there are none yet (iteration 0)."""
    return [
        policy_example(
            ctx,
            t.transition_id,
            t,
            t.thought,
            t.action,
            label_reasoning(ctx.config.roles.policy, ctx.config.correction, t.reasoning),
        )
        for t in transitions
        if t.action_valid
    ]


def policy_example(
    ctx: StageContext,
    row_id: str,
    transition: DrawnTransition,
    thought: str,
    action: str,
    reasoning: str | None,
    weight: float = 1.0,
) -> Example:
    """An action in the state of a transition, under the plain policy prompt."""
    segments = (write_action(thought, action, ctx.config.roles.policy.line_limit),)
    shown = whole_label(segments, reasoning)
    prompt = policy_prompt(ctx.prompts, transition.state, label=shown, trains=True)
    example = Example(
        row_id=row_id,
        role="policy",
        messages=prompt.messages,
        segments=segments,
        reasoning=reasoning,
        dropped=prompt.dropped,
        scored_segment=None,
        weight=weight,
    )
    return natively(ctx, example, transition.state)


def natively(ctx: StageContext, example: Example, state: State) -> Example:
    """An action in state s as the policy's family writes it; as it is where actions are text."""
    if not ctx.prompts.policy_tools:
        return example
    form = ctx.environment.action_format
    answer = action_message("".join(example.segments), form, len(state.turns))
    return replace(example, tools=ctx.prompts.policy_tools, answer=answer)
