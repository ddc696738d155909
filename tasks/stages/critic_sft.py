"""Stage critic-sft: fine-tune the successor on the corrected targets under the predict prompt, which shows
only (s, a).

Loss of a batch: mean over critic rows of w * NLL + mean over policy rows of NLL, NLL per token of the
completion. Before the first update every target is scored: p_i = max(0, mean over description tokens of
log p_B - log p_theta), the priorities of the next draws. After every step the target parameters follow (EMA).
"""

import numpy as np

from schemas.config import Config
from schemas.rows import (
    CorrectedTarget,
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


async def critic_sft(ctx: StageContext) -> Output:
    """Fine-tune the critic; with shared parameters policy rows are mixed into every batch.

    The policy rows are the refinements distilled an iteration ago; while there are none yet, valid replayed
    actions.
    """
    targets: list[CorrectedTarget] = ctx.inputs.rows("corrected_targets")
    refinements = ctx.inputs.rows("refinements")
    ids = [row.transition_id for row in (*targets, *refinements)]
    transitions = load_drawn(ctx.inputs, ids)
    main = Source(
        "corrected_targets", critic_examples(ctx, targets, ctx.inputs.rows("replay_samples"), transitions)
    )
    if not main.examples:
        raise nothing_to_train("corrected targets", targets)
    if refinements:
        other = Source("refinements", refined_examples(ctx, refinements, transitions))
    else:
        other = Source("transitions", drawn_examples(ctx, transitions.values()))
    trained = await fine_tune(ctx, section="critic", main=main, other=other, moves_target=True)
    priorities = measure_priorities(ctx, targets, trained.result.scores)
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps, "priorities": priorities},
        rows_in=len(targets),
        adapters={"critic": "adapter", "target": "target"},
        metrics={
            **trained.metrics,
            "mean_priority": sum(p.priority for p in priorities) / max(len(priorities), 1),
        },
    )


def measure_priorities(
    ctx: StageContext, targets: list[CorrectedTarget], scores: dict[str, tuple[float, ...]]
) -> list[Priority]:
    """p_i of every transition whose target was scored; several targets of one transition are averaged.

    p_i = max(0, (log mean_j p_B(d | s, a, r, s', a'_j, d'_j) - log p_theta(d | s, a)) / description tokens), with the
    label's thought before d on both sides. In expectation over labels it bounds the KL from above, and less
    loosely the larger J is (Yin & Zhou 2018, arXiv 1805.11183: d was written from one of the J it is averaged over).
    J = 1 (or a terminal one) is the mean over tokens of log p_B - log p_theta. Without p_B: -log p_theta / tokens.

    Args:
        ctx: names the run and iteration.
        targets: rows with log p_B of their description's tokens, or without (an engine that can't score).
        scores: corrected_id -> log p_theta of the same tokens.
    """
    by_transition: dict[str, list[CorrectedTarget]] = {}
    for target in targets:
        if scores.get(target.corrected_id):
            by_transition.setdefault(target.transition_id, []).append(target)
    rows = []
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
    return rows


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
        },
        adapters={"start": resolve.critic_start(), "target": resolve.target()},
        files=resolve.optimizer("critic", *carried_from),
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    rows, section = config.replay.transitions, config.critic
    steps = training_steps(section, rows, algorithm.mix(config, "critic"))
    tokens = rows * section.epochs * config.roles.bootstrap.max_tokens
    return Bound(0, tokens, f"{rows * section.epochs} rows, {steps} steps")


STAGE = Stage(
    name="critic-sft",
    version=4,
    pool="training",
    reads=(CorrectedTarget, ReplaySample, Refinement, Transition),
    writes=(TrainingRow, TrainingStep, Priority),
    adapters=("critic", "target"),
    config=(
        "environment",
        "critic",
        "target",
        "parameters",
        "backup",
        "anchor",
        "roles.policy.tool_calls",
        "roles.policy.max_tokens",
        "roles.predict.max_tokens",
    ),
    roles=(),
    templates=("policy", "predict"),
    inputs=_inputs,
    bound=_bound,
    run=critic_sft,
)
