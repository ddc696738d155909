"""What the critic is trained on: labels of the successor, or values of actions.

A policy row mixed in is one that the policy was trained on an iteration ago.
"""

import numpy as np

from schemas.config import Config
from schemas.rows import CorrectedTarget, Priority, ReplaySample
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.example import Example
from tasks.datasets.sft_examples import critic_examples, drawn_examples, refined_examples
from tasks.runtime.algorithm import CriticRows
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Inputs
from tasks.training.fine_tuning import Source, nothing_to_train
from tasks.training.records import TrainingResult


def _read_labels(resolve: Resolver) -> Inputs:
    before = resolve.iteration - 1
    return Inputs(
        tables={
            "corrected_targets": [resolve.here("cot-correction")],
            "replay_samples": [resolve.replay_samples()],
            "refinements": resolve.last("refinement", before) if resolve.mixes_policy_rows else [],
            "transitions": resolve.replay(),
        }
    )


def _labels(ctx: StageContext) -> tuple[list[Example], Source]:
    """The corrected targets. The policy rows are the refinements distilled an iteration ago; while there are none yet,
    valid replayed actions."""
    targets: list[CorrectedTarget] = ctx.inputs.rows("corrected_targets")
    refinements = ctx.inputs.rows("refinements")
    transitions = load_drawn(ctx.inputs, [row.transition_id for row in (*targets, *refinements)])
    examples = critic_examples(ctx, targets, ctx.inputs.rows("replay_samples"), transitions)
    if not examples:
        raise nothing_to_train("corrected targets", targets)
    if refinements:
        return examples, Source("refinements", refined_examples(ctx, refinements, transitions))
    return examples, Source("transitions", drawn_examples(ctx, transitions.values()))


def _remake_labels(ctx: StageContext) -> list[Example]:
    targets: list[CorrectedTarget] = ctx.inputs.rows("corrected_targets")
    transitions = load_drawn(ctx.inputs, [row.transition_id for row in targets])
    return critic_examples(ctx, targets, ctx.inputs.rows("replay_samples"), transitions)


def _prioritised(config: Config) -> bool:
    return config.replay.alpha > 0


def _priorities(ctx: StageContext, trained: TrainingResult) -> list[Priority]:
    return measure_priorities(
        ctx, ctx.inputs.rows("replay_samples"), ctx.inputs.rows("corrected_targets"), trained
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


LABELS = CriticRows(
    table="corrected_targets",
    stage="cot-correction",
    read=_read_labels,
    load=_labels,
    remake=_remake_labels,
    scores=_prioritised,
    priorities=_priorities,
)
