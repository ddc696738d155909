"""Stage critic-sft: fine-tune the successor on the corrected targets under the predict prompt, which shows
only (s, a).

Loss of a batch: mean over critic rows of w * NLL + mean over policy rows of NLL, NLL per token of the
completion. Before the first update every target is scored: p_i = max(0, mean over description tokens of
log p_B - log p_theta), the priorities of the next draws. Uniform replay (`replay.alpha: 0`) needs none: nothing is
scored, and table `priorities` is empty. After every step the target parameters follow (EMA).
"""

import numpy as np

from schemas.config import Config
from schemas.rows import (
    CorrectedTarget,
    Demonstration,
    Priority,
    Refinement,
    ReplaySample,
    TrainingRow,
    TrainingStep,
    Transition,
)
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.sft_examples import critic_examples, drawn_examples, refined_examples
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.training.fine_tuning import Source, fine_tune, nothing_to_train, training_steps
from tasks.training.records import TrainingResult


async def critic_sft(ctx: StageContext) -> Output:
    """Fine-tune the critic; with shared parameters policy rows are mixed into every batch.

    The policy rows are the refinements distilled an iteration ago; while there are none yet, valid replayed
    actions.
    """
    targets: list[CorrectedTarget] = ctx.inputs.rows("corrected_targets")
    refinements = ctx.inputs.rows("refinements")
    ids = [row.transition_id for row in (*targets, *refinements)]
    transitions = load_drawn(ctx.inputs, ids)
    samples: list[ReplaySample] = ctx.inputs.rows("replay_samples")
    main = Source("corrected_targets", critic_examples(ctx, targets, samples, transitions))
    if not main.examples:
        raise nothing_to_train("corrected targets", targets)
    if refinements:
        other = Source("refinements", refined_examples(ctx, refinements, transitions))
    else:
        other = Source("transitions", drawn_examples(ctx, transitions.values()))
    prioritised = ctx.config.replay.alpha > 0
    trained = await fine_tune(
        ctx, section="critic", main=main, other=other, moves_target=True, scores=prioritised
    )
    metrics, priorities = trained.metrics, list[Priority]()
    if prioritised:
        priorities = measure_priorities(ctx, samples, targets, trained.result)
        metrics = {**metrics, "mean_priority": _mean([p.priority for p in priorities])}
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps, "priorities": priorities},
        rows_in=len(targets),
        adapters={"critic": "adapter", "target": "target"},
        metrics=metrics,
    )


def measure_priorities(
    ctx: StageContext, samples: list[ReplaySample], targets: list[CorrectedTarget], trained: TrainingResult
) -> list[Priority]:
    """p_i of every drawn transition; several scored targets of one transition are averaged.

    p_i = max(0, (log mean_j p_B(d | s, a, r, s', a'_j, d'_j) - log p_theta(d | s, a)) / description tokens), with the
    label's thought before d on both sides. In expectation over labels it bounds the KL from above, and less
    loosely the larger J is (Yin & Zhou 2018, arXiv 1805.11183: d was written from one of the J it is averaged over).
    J = 1 (or a terminal one) is the mean over tokens of log p_B - log p_theta. Without p_B: -log p_theta / tokens.

    A transition none of whose targets was scored gets half of what it was drawn with, so that it is drawn less often
    each time, and never quite stops being drawn (`replay.epsilon`).

    Args:
        ctx: names the run and iteration.
        samples: the iteration's draw.
        targets: rows with log p_B of their description's tokens, or without (an engine that can't score).
        trained: log p_theta of the same tokens by corrected_id, and which rows were too long.
    """
    scores = trained.scores
    by_transition: dict[str, list[CorrectedTarget]] = {}
    for target in targets:
        if scores.get(target.corrected_id):
            by_transition.setdefault(target.transition_id, []).append(target)
    rows: list[Priority] = []
    for transition_id, group in by_transition.items():
        critic = _mean([_mean(scores[t.corrected_id]) for t in group])
        backed = [_backup_loglikelihood(t) / len(scores[t.corrected_id]) for t in group if t.backup_logprobs]
        bound = len(backed) == len(group)
        rows.append(
            Priority(
                run=ctx.config.run,
                iteration=ctx.iteration,
                transition_id=transition_id,
                priority=max(0.0, _mean(backed) - critic) if bound else max(0.0, -critic),
                priority_kind="kl_bound" if bound else "nll",
                critic_logprob=critic,
                backup_logprob=_mean(backed) if bound else None,
                description_tokens=sum(len(scores[t.corrected_id]) for t in group),
                backup_draws=max(len(t.backup_draw_logprobs or [0]) for t in group) if bound else None,
            )
        )
    largest, kind = max(row.priority for row in rows), rows[0].priority_kind  # without a row nothing trains
    faults = {t.transition_id: _fault(t, trained.too_long) for t in targets}
    for sample in {s.transition_id: s for s in samples if s.transition_id not in by_transition}.values():
        status, error = faults.get(
            sample.transition_id, ("target_failed", "its backup failed (bellman_targets)")
        )
        rows.append(
            Priority(
                run=ctx.config.run,
                iteration=ctx.iteration,
                status=status,
                error=error,
                transition_id=sample.transition_id,
                priority=min(sample.priority, largest) / 2,
                priority_kind=kind,
                description_tokens=0,
            )
        )
    return rows


def _fault(target: CorrectedTarget, too_long: dict[str, str]) -> tuple[str, str | None]:
    """Why a target was not scored: status and error."""
    if target.status != "ok":
        return target.status, target.error
    return "too_long", too_long.get(target.corrected_id, "its description has no token")


def _backup_loglikelihood(target: CorrectedTarget) -> float:
    """log p_B of a whole description: the log of the mean of p_B over the draws of (a', d')."""
    draws = target.backup_draw_logprobs or [sum(target.backup_logprobs or ())]
    return float(np.logaddexp.reduce(draws) - np.log(len(draws)))


def _mean(values: tuple[float, ...] | list[float]) -> float:
    return sum(values) / len(values)


def _inputs(resolve: Resolver) -> Inputs:
    before = resolve.iteration - 1
    carried_from = (resolve.last_trained(before) if resolve.shared else "critic-sft", before)
    distilled = (
        resolve.algorithm.mix(resolve.config, "critic")
        and before >= resolve.config.improvement.from_iteration
    )
    return Inputs(
        tables={
            "corrected_targets": [resolve.here("cot-correction")],
            "replay_samples": [resolve.replay_samples()],
            "refinements": resolve.last("refinement", before) if distilled else [],
            "transitions": resolve.replay(),
            "demonstrations": resolve.demonstrations("critic"),
        },
        adapters={"start": resolve.critic_start(), "target": resolve.target(), **resolve.anchor()},
        files=resolve.optimizer("critic", *carried_from),
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    rows, section = config.replay.transitions, config.critic
    steps = training_steps(section, rows, algorithm.mix(config, "critic") + section.rehearse_share)
    tokens = rows * section.epochs * config.roles.bootstrap.max_tokens
    return Bound(0, tokens, f"{rows * section.epochs} rows, {steps} steps")


STAGE = Stage(
    name="critic-sft",
    version=5,
    pool="training",
    reads=(CorrectedTarget, ReplaySample, Refinement, Transition, Demonstration),
    writes=(TrainingRow, TrainingStep, Priority),
    adapters=("critic", "target"),
    config=(
        "environment",
        "critic",
        "target",
        "parameters",
        "backup",
        "anchor",
        "replay.alpha",
        "roles.policy.tool_calls",
        "roles.policy.max_tokens",
        "roles.policy.thinking",
        "correction.reasoning_chars",
        "roles.policy.structured",
        "roles.policy.line_chars",
        "roles.predict.max_tokens",
    ),
    roles=(),
    templates=("policy", "predict"),
    inputs=_inputs,
    bound=_bound,
    run=critic_sft,
)
